"""Commands that look at a run and steer it while it goes on."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from asyncrl.cli.terminal import report_errors, to_json
from asyncrl.errors import LinkError

PATH = click.Path(path_type=Path)

Command = TypeVar("Command", bound=Callable[..., Any])


def on_run(command: Command) -> Command:
    """Add the argument RUN|ADDRESS and the option --key, with which the broker of a run is found."""
    key = click.option(
        "--key", type=PATH, metavar="FILE", help="Key with the role supervisor.  [default: $ASYNCRL_KEY_FILE]"
    )
    return click.argument("run", metavar="RUN|ADDRESS")(key(command))


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


@click.command()
@on_run
@json_option
@report_errors
def status(run: str, key: Path | None, as_json: bool) -> None:
    """
    Show what a run does now: its step, window, nodes and last incidents.

    The run is named by its directory on this machine, or by the broker's ADDRESS, tcp://HOST:PORT. From another machine
    that takes the key in ASYNCRL_KEY_FILE, one with the role supervisor. If no broker serves the run, its files are
    read. Exits with 69 if the run is not over and its broker cannot be asked.

    \b
    Example:
      asyncrl status runs/quickstart
      ASYNCRL_KEY_FILE=alice.key asyncrl status tcp://10.0.0.1:5570 --json
    """
    from asyncrl.cli.operate.status import plain, run_state
    from asyncrl.cli.operate.status_lines import state_lines

    state = asyncio.run(run_state(run, key))
    if as_json:
        found = {"live": plain(state.live), "files": plain(state.files), "unasked": state.unasked}
        click.echo(to_json({name: value for name, value in found.items() if value}))
    else:
        click.echo("\n".join(state_lines(state, run)))
        if state.unasked:
            click.echo(state.unasked, err=state.is_unknown)
    sys.exit(LinkError.exit_code if state.is_unknown else 0)


COMMANDS = (status,)
