import click
import pytest
from click.testing import CliRunner, Result

from asyncrl.cli.keys.duration import DURATION


@click.command()
@click.option("--overlap", "overlap_s", type=DURATION, default="0")
def command(overlap_s: float) -> None:
    click.echo(repr(overlap_s))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0.0), ("90s", 90.0), ("30m", 1800.0), ("24h", 86400.0), ("7d", 604800.0), ("0h", 0.0)]
)
def test_a_number_and_a_unit_are_seconds(text: str, seconds: float) -> None:
    assert run("--overlap", text).output == f"{seconds!r}\n"


def test_the_default_is_converted() -> None:
    assert run().output == "0.0\n"


@pytest.mark.parametrize("text", ["", "24", "h", "-1h", "1.5h", "1w", "24 h", "9999999d"])
def test_other_text_is_a_usage_error(text: str) -> None:
    result = run("--overlap", text)
    assert result.exit_code == 2
    assert "is no duration: expected a number and s, m, h or d, such as 24h" in " ".join(result.output.split())
