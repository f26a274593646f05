import click
import pytest
from click.testing import CliRunner

from asyncrl.cli.terminal import aligned, report_errors, to_json
from asyncrl.errors import DataError, RunFailed


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


def test_columns_are_aligned():
    assert aligned([["a", "1", "x"], ["bcd", "23", ""]], right=[1]) == ["a     1  x", "bcd  23"]
    assert aligned([]) == []


def test_json_is_indented():
    assert to_json({"a": [1]}) == '{\n  "a": [\n    1\n  ]\n}'
