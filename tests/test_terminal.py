import ast
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.console import Console
from rich.text import Text

import asyncrl
from asyncrl.cli.parts import report_errors
from asyncrl.errors import DataError, RunFailed
from asyncrl.terminal import aligned, echo, say, to_json, told_if_slow
from tests.patience import PATIENCE_S


def ended(error: Exception) -> tuple[int, str]:
    @click.command()
    @report_errors
    def command() -> None:
        raise error

    result = CliRunner().invoke(command)
    return result.exit_code, result.stderr


@pytest.mark.parametrize(("error", "code"), [(DataError("no such dataset"), 78), (RunFailed("it broke"), 1)])
def test_an_expected_error_is_one_line_with_its_exit_code(error, code):
    assert ended(error) == (code, f"asyncrl: {error}\n")


@pytest.mark.parametrize(("module", "extra"), [("pyarrow.parquet", "node"), ("torch", "train")])
def test_a_missing_optional_package_is_one_sentence_with_the_extra_that_has_it(module, extra):
    package = module.partition(".")[0]
    assert ended(ModuleNotFoundError("not found", name=module)) == (
        78,
        f"asyncrl: this command needs {package}, which is not installed; run: pip install 'asyncrl[{extra}]'\n",
    )


def test_any_other_exception_is_a_bug_and_keeps_its_trace():
    @click.command()
    @report_errors
    def command() -> None:
        raise ZeroDivisionError

    assert isinstance(CliRunner().invoke(command).exception, ZeroDivisionError)


class Screen(io.StringIO):
    """A standard error that notes when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.was_written = threading.Event()

    def write(self, text: str) -> int:
        size = super().write(text)
        if text:  # Click writes nothing once, to see what the stream takes.
            self.was_written.set()
        return size


def test_a_command_that_takes_long_says_what_it_does_in_a_log_too(monkeypatch):
    monkeypatch.setattr("sys.stderr", screen := Screen())
    with told_if_slow("comparing", slow_s=0.0):
        assert screen.was_written.wait(PATIENCE_S)
    assert screen.getvalue() == "comparing\n"


def test_a_quick_one_says_nothing(monkeypatch):
    monkeypatch.setattr("sys.stderr", screen := Screen())
    with told_if_slow("comparing", slow_s=PATIENCE_S):
        pass
    assert screen.getvalue() == ""


def test_columns_are_aligned():
    assert aligned([["a", "1", "x"], ["bcd", "23", ""]], right=[1]) == ["a     1  x", "bcd  23"]
    assert aligned([]) == []


def test_json_is_indented():
    assert to_json({"a": [1]}) == '{\n  "a": [\n    1\n  ]\n}'


@pytest.mark.parametrize("is_error", [True, False])
def test_lines_are_printed_with_escapes_in_place_of_what_a_terminal_obeys(capsys, is_error):
    echo("a\x1b[2J\tc\nb\u202e", err=is_error)
    printed, errors = capsys.readouterr()
    assert (errors if is_error else printed) == "a\\x1b[2J        c\nb\\u202e\n"


def test_a_console_keeps_its_own_styles_and_none_of_a_text():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="standard", width=20)
    say(console, Text.assemble(("policy ", "red"), "\x1b[2J" + "long " * 5))
    say(console, "[bold]\x9b31m")
    assert out.getvalue() == "\x1b[31mpolicy \x1b[0m\\x1b[2J" + "long " * 5 + "\n[bold]\\x9b31m\n"


def test_json_says_the_same_with_escapes_of_its_own():
    value = {"a\u202e": ["\x1b\x9b31m", "\U000e0041", "答案"]}
    text = to_json(value)
    assert json.loads(text) == value
    assert text.replace("\n", "").isprintable()
    assert "答案" in text


def test_a_cell_of_a_table_is_one_line_and_the_columns_stay_aligned():
    assert aligned([["a\nb", "1"], ["\x1b", "2"]]) == ["a\\nb  1", "\\x1b  2"]


def test_an_error_has_escapes_in_place_of_what_a_terminal_obeys():
    assert ended(RunFailed("the reward raised \x1b[2J")) == (1, "asyncrl: the reward raised \\x1b[2J\n")


PRINTING = {"echo", "secho", "echo_via_pager", "print", "print_json", "rule", "out", "log"}
"""Functions and methods of click, rich and Python that print."""


def printing_calls(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Name(id="print"):
                yield f"{file.name}:{node.lineno}"
            case ast.Attribute(value=ast.Name(id=("click" | "console" | "_console")), attr=name) if name in PRINTING:
                yield f"{file.name}:{node.lineno}"
            case ast.Attribute(value=ast.Attribute(attr="_console"), attr=name) if name in PRINTING:
                yield f"{file.name}:{node.lineno}"
            case ast.ImportFrom(module="click", names=names) if PRINTING & {name.name for name in names}:
                yield f"{file.name}:{node.lineno}"


def test_no_other_module_prints():
    """What is printed by another door would need the same care there, and would not get it."""
    folder = Path(asyncrl.__file__).parent
    files = [file for room in ("cli", "runtime", "tools") for file in (folder / room).rglob("*.py")]
    assert [place for file in files for place in printing_calls(file)] == []
    assert list(printing_calls(folder / "terminal.py")), "the search finds what prints"
