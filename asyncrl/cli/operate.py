"""Commands that look at a run and steer it: status, ls, top, logs, stop, pause, set, drain, admit, stacks, ..."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import click

from asyncrl.cli.parts import RUN_PATH, json_option, newest_run, report_errors, together
from asyncrl.cli.session import operator
from asyncrl.errors import ConfigError, LinkError, RunFailed
from asyncrl.messages.session import Drain
from asyncrl.messages.supervisor import (
    Admit,
    AdmitReply,
    Drained,
    Finished,
    Pause,
    Paused,
    SetSettings,
    SettingsChanged,
)
from asyncrl.records.evaluation_metrics import failed_note
from asyncrl.records.formatting import count, duration
from asyncrl.records.run_record import RunOverview, find_runs, overview
from asyncrl.terminal import Row, aligned, command_line, echo, to_json
from asyncrl.wire.link import Link
from asyncrl.wire.run_address import RunAddress

# ── pause ─────────────────────────────────────────────────────────────────────────────────────
# `asyncrl pause` and `asyncrl unpause`: no new leases for rollouts, until they are granted again.

PAUSED = "paused: rollouts finish what they have and get no new leases; the trainer trains what is complete, then waits"
RESUMED = "sampling goes on: rollouts get leases again"


async def ask_to_pause(run: RunAddress, *, is_paused: bool) -> str:
    """Pause a run, or let it go on; returns a sentence once that is on disk. Raises `LinkError` without an answer."""
    async with operator(run) as session:
        # A supervisor that joins a paused run is told that first.
        await session.ask(Pause(is_paused), Paused, is_answer=lambda told: told.is_paused == is_paused)
    return PAUSED if is_paused else RESUMED


# ── settings ──────────────────────────────────────────────────────────────────────────────────
# `asyncrl set`: changes live settings of a running run; the broker checks them with all others.


async def set_settings(run: RunAddress, assignments: Sequence[str]) -> list[str]:
    """
    Set ``KEY=VALUE`` texts, and return a line for each change once it is on disk.

    Raises:
        ConfigError: The broker refuses one of them, and has changed nothing.
        LinkError: The broker does not answer.
    """
    async with operator(run) as session:
        # Changes of others are told to every supervisor.
        question, name = SetSettings(list(assignments)), session.name
        changed = await session.ask(question, SettingsChanged, is_answer=lambda told: told.by == name)
    if changed.problem:
        raise ConfigError(changed.problem)
    if not changed.values:
        return ["nothing changed: the run has these values already"]
    return [f"{key} = {value} from now on" for key, value in changed.values.items()]


# ── drain ─────────────────────────────────────────────────────────────────────────────────────
# `asyncrl drain` and `asyncrl admit`: one node leaves a running run, or is given work again.


async def ask_to_drain(run: RunAddress, node: str, wait_s: float) -> None:
    """
    Drain a node, and wait until it has left.

    Raises:
        ConfigError: There is no such node, or it cannot be drained.
        RunFailed: The node was lost, or does not leave within ``wait_s`` seconds.
        LinkError: The broker does not answer, or the connection ends.
    """
    async with operator(run) as session:
        try:
            async with asyncio.timeout(wait_s):
                await session.link.send(Drain(node))
                answer = await _answer(session.link)
        except TimeoutError:
            raise RunFailed(
                f"{node} was asked to leave, but did not within {wait_s:g} s; see its log, or run `asyncrl events`"
            ) from None
    if answer.problem:
        raise (ConfigError if answer.is_refused else RunFailed)(answer.problem)


async def ask_to_admit(run: RunAddress, node: str) -> None:
    """
    Have a barred node given work again.

    Raises:
        ConfigError: There is no such node, or it is not barred.
        LinkError: The broker does not answer, or the connection ends.
    """
    async with operator(run) as session:
        answer = await session.ask(Admit(node), AdmitReply)
    if answer.problem:
        raise ConfigError(answer.problem)


async def _answer(link: Link) -> Drained:
    while True:
        match await link.receive():
            case Drained() as answer:
                return answer
            case Finished():
                raise LinkError("the run ended before the node left")


# ── run list ──────────────────────────────────────────────────────────────────────────────────
# `asyncrl ls`: the runs of a folder, one line each.

DAY_S = 86_400


def list_runs(folder: Path) -> list[RunOverview]:
    """Every run directly below ``folder``, the newest last. Raises `ConfigError` if there is no such folder."""
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}: give the one with the run directories (run.dir of a run file)")
    return sorted(map(overview, find_runs(folder)), key=lambda run: run.began_at)


def run_table(runs: list[RunOverview]) -> list[str]:
    """Table of the runs."""
    rows: list[Row] = [["run", "status", "step", "reward", "held out", "age", "disk"]]
    for run in runs:
        rows.append(
            [
                run.run,
                run.status,
                f"{run.step}/{'?' if run.steps is None else run.steps}",
                "" if run.reward is None else f"{run.reward:.3f}",
                "" if run.accuracy is None else f"{run.accuracy:.1%}{failed_note(run.accuracy_failed)}",
                "" if run.age_s is None else age(run.age_s),
                f"{count(run.num_bytes)}B",
            ]
        )
    return aligned(rows, right=range(2, 7))


def age(seconds: float) -> str:
    """Age in days from two days on, otherwise as `duration`."""
    return duration(seconds) if seconds < 2 * DAY_S else f"{seconds / DAY_S:.0f} days"


# ── commands ──────────────────────────────────────────────────────────────────────────────────

PATH = click.Path(path_type=Path)

key_option = click.option(
    "--key", type=PATH, metavar="FILE", help="Key with the role supervisor.  [default: $ASYNCRL_KEY_FILE]"
)
on_run = together(key_option, click.argument("run", metavar="RUN|ADDRESS"))
"""Argument by which the broker of a run is found, and the key for it."""
on_newest_run = together(key_option, click.argument("run", metavar="[RUN|ADDRESS]", default=newest_run))
"""Argument of commands for which the newest run will do if none is named, and the key."""


@click.command()
@on_newest_run
@json_option
@report_errors
def status(run: str, key: Path | None, as_json: bool) -> None:
    """
    Show what a run does now.

    Its step, window and nodes, what each of them waits for, and the last incidents.

    The run is named by its directory on this machine, by default the newest below runs/, or by the broker's ADDRESS,
    tcp://HOST:PORT. From another machine that takes a key with the role supervisor, by --key or in ASYNCRL_KEY_FILE. If
    no broker serves the run, its files are read. Exits with 69 if the run is not over and its broker cannot be asked.

    \b
    Example:
      asyncrl status runs/quickstart
      ASYNCRL_KEY_FILE=alice.key asyncrl status tcp://10.0.0.1:5570 --json
    """
    from asyncrl.cli.status import plain, run_state, state_lines

    state = asyncio.run(run_state(run, key))
    if as_json:
        found = {"live": plain(state.live), "files": plain(state.files), "unasked": state.unasked}
        echo(to_json({name: value for name, value in found.items() if value}))
    else:
        echo("\n".join(state_lines(state, run)))
        if state.unasked:
            echo(state.unasked, err=state.is_unknown)
    sys.exit(LinkError.exit_code if state.is_unknown else 0)


@click.command("ls")
@click.argument("folder", metavar="[DIR]", type=RUN_PATH, default="runs", required=False)
@json_option
@report_errors
def list_(folder: Path, as_json: bool) -> None:
    """
    List the runs in a folder.

    With status, step, reward, held-out accuracy, age and space on disk.

    DIR is the folder of the run directories, by default runs. A run is running while a broker on this machine serves
    it, and stopped if no end of it is recorded and none does.
    """
    from asyncrl.cli.status import plain

    runs = list_runs(folder)
    if as_json:
        echo(to_json(plain(runs)))
    else:
        echo("\n".join(run_table(runs)) if runs else f"there are no runs in {folder}")


@click.command()
@on_newest_run
@click.option("--every", "every_s", type=click.FloatRange(0.1), default=1.0, help="Seconds between two looks.")
@report_errors
def top(run: str, key: Path | None, every_s: float) -> None:
    """
    Show what a run does, until it is over.

    The same as `asyncrl status`, which explains RUN|ADDRESS. Without a terminal it prints one block for each look.
    """
    from asyncrl.cli.status import Display
    from asyncrl.cli.status import top as show

    with Display(sys.stdout) as display, suppress(KeyboardInterrupt):
        asyncio.run(show(run, key, every_s, display))


@click.command()
@click.argument("run", metavar="RUN", type=RUN_PATH)
@click.argument("node", metavar="[NODE]", default="", required=False)
@click.option("-f", "--follow", is_flag=True, help="Print further lines as they are written, until the run is over.")
@click.option("-n", "--lines", "number", type=click.IntRange(0), help="Only this many of the last lines.")
@click.option("--level", type=click.Choice(["debug", "info", "warning", "error"]), default="debug", help="Least level.")
@click.option("--json", "as_json", is_flag=True, help="Print the lines as they are in the files.")
@report_errors
def logs(run: Path, node: str, *, follow: bool, number: int | None, level: str, as_json: bool) -> None:
    """
    Print the logs of a run on this machine.

    Merged by time, or the log of one NODE.

    RUN is a run directory, or the --run-dir of the services of this machine. A node without a file there logs on its
    own machine, to its service manager, such as `journalctl -u asyncrl@rollout`. What a reward function or an
    environment prints is of level info. Other text that is no event, such as a traceback, a warning of a library or
    the output of an agent program, is printed at every level.

    \b
    Example:
      asyncrl logs -f runs/quickstart
      asyncrl logs --level warning runs/quickstart
      asyncrl logs runs/quickstart rollout-0
    """
    from asyncrl.cli.logs import elsewhere_note, log_lines, open_logs, show_last

    found, elsewhere = open_logs(run, node, level)
    if elsewhere and not node:
        echo(elsewhere_note(run, elsewhere), err=True)

    with suppress(KeyboardInterrupt):
        show_last(found, partial(log_lines, as_json=as_json, names_node=not node), number, is_followed=follow)


@click.command()
@click.argument("run", metavar="[RUN]", type=RUN_PATH, default=newest_run)
@click.option("-n", "--lines", "number", type=click.IntRange(0), default=40, help="Number of earlier lines to show.")
@report_errors
def attach(run: Path, number: int) -> None:
    """
    Show what `asyncrl run` prints of a run that goes on.

    From the files of RUN, by default the newest below runs/, until the run is over. Ctrl-C ends this command, and not
    the run. For a run without a terminal, such as one of `asyncrl run --detach`.

    \b
    Example:
      asyncrl attach runs/quickstart
    """
    from asyncrl.cli.logs import open_screen, show_last

    try:
        show_last(open_screen(run), lambda lines: [line.text for line in lines], number, is_followed=True)
    except KeyboardInterrupt:
        echo(f"the run goes on; to end it: {command_line('asyncrl', 'stop', run)}", err=True)


@click.command()
@on_run
@click.option("--wait", "wait_s", type=click.FloatRange(0), default=170.0, help="Seconds to wait for the end.")
@report_errors
def stop(run: str, key: Path | None, wait_s: float) -> None:
    """
    End a run early, so that it can be resumed.

    The trainer saves a checkpoint, and rollouts store what they have sampled, as after Ctrl-C under `asyncrl run`.
    `asyncrl status` explains RUN|ADDRESS. A run that is over already stays as it is.

    \b
    Example:
      asyncrl stop runs/quickstart
      asyncrl resume runs/quickstart
    """
    from asyncrl.cli.stop import stop as stop_run

    echo("\n".join(asyncio.run(stop_run(run, key, wait_s))))


@click.command()
@on_run
@report_errors
def pause(run: str, key: Path | None) -> None:
    """
    Pause the sampling of a run.

    Rollouts get no new leases, neither for training nor for an evaluation. What they have goes on, is graded and
    trained on, and then everybody waits, also after a restart of the broker or `asyncrl resume`, until
    `asyncrl unpause RUN`. `asyncrl status` explains RUN|ADDRESS.
    """
    _pause(run, key, is_paused=True)


@click.command()
@on_run
@report_errors
def unpause(run: str, key: Path | None) -> None:
    """
    Let a paused run sample again.

    A run that stopped is continued by `asyncrl resume`. `asyncrl status` explains RUN|ADDRESS.
    """
    _pause(run, key, is_paused=False)


def _pause(run: str, key: Path | None, *, is_paused: bool) -> None:
    from asyncrl.cli.status import live_address

    echo(asyncio.run(ask_to_pause(live_address(run, key), is_paused=is_paused)))


@click.command("set")
@on_run
@click.argument("assignments", metavar="KEY=VALUE...", nargs=-1, required=True)
@report_errors
def set_(run: str, key: Path | None, assignments: tuple[str, ...]) -> None:
    """
    Change settings of a run while it goes on.

    These can be set: trainer.lr, schedule.staleness, sampling.max_tokens and evaluation.every_versions, which
    `asyncrl config explain` marks as live. All assignments count, or none. The change is in the ledger with its time
    and operator, so that it outlasts a restart of the broker and `asyncrl resume`; config.toml stays as it was.
    `asyncrl status` explains RUN|ADDRESS.

    \b
    Example:
      asyncrl set runs/quickstart trainer.lr=1e-4 schedule.staleness=2
    """
    from asyncrl.cli.status import live_address

    for line in asyncio.run(set_settings(live_address(run, key), assignments)):
        echo(line)


@click.command()
@on_run
@click.argument("node", metavar="NODE")
@report_errors
def stacks(run: str, key: Path | None, node: str) -> None:
    """
    Print where the threads and asyncio tasks of a node are.

    NODE is a rollout, a reward node, the trainer, or broker. A node answers from its event loop. One whose loop hangs
    cannot: then, if it is a process of this machine that `asyncrl run` started, a signal makes the interpreter write
    its threads to its log, which are printed from there. `asyncrl status` explains RUN|ADDRESS.
    """
    from asyncrl.cli.stop import stacks as stacks_of

    echo(stacks_of(run, key, node))


@click.command()
@on_run
@click.argument("node", metavar="NODE")
@click.option("--wait", "wait_s", type=float, default=60.0, help="Seconds to wait for the node to leave.")
@report_errors
def drain(run: str, key: Path | None, node: str, wait_s: float) -> None:
    """
    Remove a rollout or reward node from a running run.

    The node returns its unfinished trajectories to the broker, which gives them to other nodes. `asyncrl status`
    explains RUN|ADDRESS.

    \b
    Example:
      asyncrl drain runs/quickstart rollout-1
      asyncrl drain --key alice.key tcp://10.0.0.1:5570 gpu1-rollout-0
    """
    from asyncrl.cli.status import live_address

    asyncio.run(ask_to_drain(live_address(run, key), node, wait_s))
    echo(f"{node} has left")


@click.command()
@on_run
@click.argument("node", metavar="NODE")
@report_errors
def admit(run: str, key: Path | None, node: str) -> None:
    """
    Give a barred node of a running run work again.

    A rollout or reward node that fails what others do not gets no work for 30 seconds, then for longer each time.
    `asyncrl status` shows such nodes with their faults, and explains RUN|ADDRESS. After a repair this ends the pause.

    \b
    Example:
      asyncrl admit runs/quickstart rollout-1
    """
    from asyncrl.cli.status import live_address

    asyncio.run(ask_to_admit(live_address(run, key), node))
    echo(f"{node} is given work again")


COMMANDS = (drain, admit, status, list_, top, logs, attach, stop, pause, unpause, set_, stacks)
