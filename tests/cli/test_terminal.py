import io
import threading

import click
import pytest
from click.testing import CliRunner

from asyncrl.cli.terminal import aligned, printable, report_errors, to_json, told_if_slow
from asyncrl.errors import DataError, RunFailed
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

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self.isatty = lambda: is_terminal  # type: ignore[method-assign]
        self.was_written = threading.Event()

    def write(self, text: str) -> int:
        size = super().write(text)
        if text:  # Click writes nothing once, to see what the stream takes.
            self.was_written.set()
        return size


def test_a_command_that_takes_long_says_what_it_does(monkeypatch):
    monkeypatch.setattr("sys.stderr", screen := Screen(is_terminal=True))
    with told_if_slow("comparing", slow_s=0.0):
        assert screen.was_written.wait(PATIENCE_S)
    assert screen.getvalue() == "comparing\n"


@pytest.mark.parametrize(("is_terminal", "slow_s"), [(True, PATIENCE_S), (False, 0.0)])
def test_a_quick_one_and_one_for_a_program_say_nothing(monkeypatch, is_terminal, slow_s):
    monkeypatch.setattr("sys.stderr", screen := Screen(is_terminal=is_terminal))
    before = threading.active_count()
    with told_if_slow("comparing", slow_s=slow_s):
        assert threading.active_count() == before + is_terminal
    assert screen.getvalue() == ""


def test_columns_are_aligned():
    assert aligned([["a", "1", "x"], ["bcd", "23", ""]], right=[1]) == ["a     1  x", "bcd  23"]
    assert aligned([]) == []


def test_json_is_indented():
    assert to_json({"a": [1]}) == '{\n  "a": [\n    1\n  ]\n}'


def test_what_a_terminal_would_obey_is_replaced():
    assert printable("a\x1b[2J\tc") == "a\N{REPLACEMENT CHARACTER}[2J   c"
