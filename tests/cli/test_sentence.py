import click
import pytest
from click.testing import CliRunner

from asyncrl.cli.sentence import one_sentence
from asyncrl.errors import DataError, RunFailed


def ended(error: Exception) -> tuple[int, str]:
    @click.command()
    @one_sentence
    def command() -> None:
        raise error

    result = CliRunner().invoke(command)
    return result.exit_code, result.stderr


@pytest.mark.parametrize(("error", "code"), [(DataError("no such dataset"), 78), (RunFailed("it broke"), 1)])
def test_an_error_of_ours_is_one_line_and_its_exit_code(error, code):
    assert ended(error) == (code, f"asyncrl: {error}\n")


def test_anything_else_is_a_bug_and_is_not_hidden():
    @click.command()
    @one_sentence
    def command() -> None:
        raise ZeroDivisionError

    assert isinstance(CliRunner().invoke(command).exception, ZeroDivisionError)
