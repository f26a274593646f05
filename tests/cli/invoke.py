"""Runs `asyncrl` within this process."""

from click.testing import CliRunner, Result

from asyncrl.cli.main import main


def asyncrl(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])
