"""
State of a run: from its broker, or from its files if there is no broker to ask.

    RUN, broker.lock held     ─▶ broker ─▶ Status
    RUN otherwise, no answer  ─▶ files ─▶ RunOverview, and the reason why the broker could not be asked
    ADDRESS                   ─▶ broker ─▶ Status, or an error
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

from msgspec import Struct, structs

from asyncrl.cli.session import operator
from asyncrl.config.run_file import load_config
from asyncrl.errors import AsyncrlError, ConfigError, LinkError
from asyncrl.files.paths import absolute
from asyncrl.foreign_text import escaped
from asyncrl.messages.session import ContainerCounts
from asyncrl.messages.supervisor import AbsentNode, NodeStatus, Status, StatusWanted
from asyncrl.records.evaluation_metrics import failed_note
from asyncrl.records.formatting import count, counted, duration, share
from asyncrl.records.measures import recently
from asyncrl.records.node_folder import node_folder
from asyncrl.records.resuming import pause_notes
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.run_record import (
    RunOverview,
    is_awaited,
    is_run,
    is_served,
    is_starting,
    is_supervised,
    meant_run,
    overview,
)
from asyncrl.records.states import node_of
from asyncrl.terminal import Row, aligned, command_line
from asyncrl.wire.run_address import RunAddress, locate

STARTING = "the broker is starting: it reads the prompts and the ledger"


class RunView(Struct, frozen=True):
    """Exactly one of ``live`` and ``files`` is set."""

    live: Status | None = None
    files: RunOverview | None = None
    unasked: str = ""
    """Reason why the broker could not be asked."""
    is_awaited: bool = False
    """True if a broker is likely to serve it within moments, without anybody's doing."""

    @property
    def is_unknown(self) -> bool:
        """True if the run is not over, or is to go on, and its broker could not be asked."""
        if (files := self.files) is None or files.status == "finished":
            return False
        return files.is_refused or files.status in ("running", "paused", "stopped")


async def run_state(where: str, key: Path | None = None) -> RunView:
    """
    State of a run, named by its directory or by its broker's address; ``key`` is the file of the operator's key.

    Raises `ConfigError` if there is no such run or no key for the address, and `LinkError` if the broker at an address
    does not answer.
    """
    if "://" in where:
        return RunView(live=await ask_status(locate(where, key)))
    directory = opened(where)
    if not is_served(directory):
        files = overview(directory.path)
        is_expected = not files.cause and is_awaited(directory)
        return RunView(None, files, _no_broker(files, directory, is_expected=is_expected), is_expected)
    if is_starting(directory):
        return RunView(None, overview(directory.path), STARTING, is_awaited=True)
    try:
        return RunView(live=await ask_status(locate(where, key)))
    except AsyncrlError as error:
        return RunView(files=overview(directory.path), unasked=f"its broker could not be asked: {error}")


async def ask_status(run: RunAddress) -> Status:
    """Ask the broker at an address. Raises `LinkError` if it does not answer."""
    async with operator(run) as session:
        return await session.ask(StatusWanted(), Status)


def live_address(where: str, key: Path | None = None) -> RunAddress:
    """
    Address of the broker of a run that is to be steered.

    Raises `ConfigError` as `opened` and `locate`, and `LinkError` if no broker serves the run.
    """
    if "://" not in where and not is_served(directory := opened(where)):
        files = overview(directory.path)
        told = _no_broker(files, directory, is_expected=is_awaited(directory))
        raise LinkError(f"{where} cannot be steered ({files.status}): {told}")
    return locate(where, key)


def opened(where: str) -> RunDirectory:
    """A run directory; raises `ConfigError` if ``where`` is none, naming the runs there are."""
    path = Path(where)
    if not is_run(path):
        if elsewhere := node_folder(path):
            raise ConfigError(elsewhere)
        if (logs := path / "logs").is_dir():
            raise ConfigError(
                f"there is no run in {where} yet: its broker was not started, or could not begin; the broker's log, in "
                f"{logs} or with its service manager, says why"
            )
        raise ConfigError(
            f"{where} is neither a run directory nor a broker's address: there is no config.toml in it; `asyncrl ls` "
            f"lists the runs below runs/, and an address is tcp://HOST:PORT{meant_run(path)}"
        )
    return RunDirectory(path)


def plain(value: Any) -> Any:
    """Messages as dicts, for JSON: on the wire they are arrays."""
    if isinstance(value, Struct):
        return {name: plain(field) for name, field in structs.asdict(value).items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def _no_broker(files: RunOverview, directory: RunDirectory, *, is_expected: bool) -> str:
    if is_supervised(directory):
        return "its broker does not run at this moment, but `asyncrl run` does, and starts or ends it"
    if files.is_refused or (files.status in ("stopped", "finished") and files.cause):
        return files.cause
    if files.status == "stopped":
        if is_expected:
            return (
                "its broker ended a moment ago: its service manager starts it again within seconds, unless somebody "
                "stopped it; look again"
            )
        return (
            "its broker does not run, and no end of the run is recorded: the broker was told to stop, was killed, or "
            "its machine went down"
        )
    summary = directory.finished_summary() if files.status == "finished" else None
    met = f": an evaluation has what run.stop_when = {summary.goal!r} asks" if summary and summary.goal else ""
    return f"its broker has ended, because the run is over{met}"


# ── resume ────────────────────────────────────────────────────────────────────────────────────
# The command that continues a run that is not complete, or its services.

COMMANDS = {
    Path("/etc/systemd/system/asyncrl-broker.service"): "systemctl restart asyncrl.target",
    Path("asyncrl.conf"): "supervisorctl -c asyncrl.conf restart all",
}
"""
Files of the services of a broker, where `asyncrl services install` puts them, and what starts these services again. A
mere start would pass over one that is still ending, which then stays away.
"""
AGAIN = "restart its services on every machine"
SERVICES = f"{AGAIN}: {', or '.join(COMMANDS.values())}"


def how_to_resume(where: str) -> str:
    """The command that continues the run in ``where``; `asyncrl resume` refuses one that has keys, or needs them."""
    directory = RunDirectory(Path(where))
    try:
        has_keys = directory.local_key.exists() or bool(load_config(directory.config).broker.exposed_addresses)
    except ConfigError:  # The command then says what is wrong with the configuration.
        has_keys = False
    if not has_keys:
        return command_line("asyncrl", "resume", where)
    run = absolute(Path(where))
    known = [command for file, command in COMMANDS.items() if f"--run-dir {run} " in _text(file)]
    return f"{AGAIN}: {known[0]}" if len(known) == 1 else SERVICES


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


# ── status lines ──────────────────────────────────────────────────────────────────────────────
# Text of a run's state, within 80 columns where names and sentences are of usual length.

COLUMNS = 80
"""Width of a terminal."""
NAMED = 4
"""Nodes that are listed by name in a sentence; further ones are counted."""
METRICS = (
    ("reward", "reward", ".3f"),
    ("accuracy", "batch accuracy", ".3f"),
    ("length_mean", "length", ".0f"),
    ("staleness_mean", "staleness", ".2f"),
    ("kl", "kl", "z.4f"),
)
"""Metrics of the last step that are shown, as many as fit: key, name, format."""
PACE: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("tokens_per_s", lambda value: f"{count(round(value))} tok/s"),
    ("step_recent_s", "{:.3g} s a step".format),
    ("wait_trainer", "trainer waits {:.0%}".format),
    ("wait_rollout", "rollouts wait {:.0%}".format),
)
"""Metrics of its line that are of the last steps: key, text."""
LAST_STEP = "last step"


def state_lines(state: RunView, where: str) -> list[str]:
    """State of a run, from the broker or from files; ``where`` is the run as it was named."""
    if state.live:
        return live_lines(state.live)
    lines = file_lines(state.files) if state.files else []
    if state.files and state.files.status in ("stopped", "failed", "interrupted") and not state.is_awaited:
        lines.append(f"resume: {how_to_resume(where)}")
        lines += [f"paused: {note}" for note in pause_notes(state.files.paused_by, where)]
    return lines


def live_lines(status: Status) -> list[str]:
    """State by the broker's books."""
    head = f"{status.run}: {status.state}, step {status.step} of {status.steps}"
    version = f"v{status.policy_version} live" if status.policy_version >= 0 else "no weights published yet"
    rows = [["window", _window(status)], *_metric_rows(status)]
    lines = [f"{head}, {version}, {duration(status.time_s)}", *status.notes, *aligned(rows)]
    lines += ["", *node_lines(status.nodes, status.absent)]
    if status.absent:
        away = [[f"  {node.node}", _away(node, status.nodes)] for node in status.absent]
        lines += ["", "away", *aligned(away)]
    if still := [[f"  {node.node}", node.still] for node in status.nodes if node.still]:
        lines += ["", "without progress", *aligned(still)]
    if held := [[f"  {node.node}", _held(node.containers)] for node in status.nodes if node.containers]:
        lines += ["", "containers", *aligned(held)]
    if waiting := _waits(status.nodes):
        lines += ["", "waiting for", *aligned(waiting)]
    if status.incidents:
        rows = [
            [f"  {duration(one.ago_s)} ago", f"{one.count} x" if one.count > 1 else "", one.sentence]
            for one in status.incidents
        ]
        lines += ["", "last incidents", *aligned(rows, right=[1])]
    return lines


def file_lines(files: RunOverview) -> list[str]:
    """State by the files of the run."""
    planned = "?" if files.steps is None else files.steps
    began = f", began {duration(files.age_s)} ago" if files.age_s is not None else ""
    took = f" in {duration(files.wall_s)}" if files.wall_s is not None else ""
    lines = [f"{files.run}: {files.status}, step {files.step} of {planned}{took}{began}"]
    rows = [["cause", files.cause]] if files.cause else []
    rows += _metric_rows(files)
    rows += [["checkpoint", files.checkpoint or files.no_checkpoint], *(["note", note] for note in files.notes)]
    return [*lines, *aligned(rows)]


def node_lines(nodes: Sequence[NodeStatus], absent: Sequence[AbsentNode] = ()) -> list[str]:
    """Table of the nodes, without supervisors, and of those that are absent."""
    rows = [["node", "role", "state", "version", "leases", "in hand", "tok/s", "lag ms", "beat s"]]
    for node in nodes:
        if node.role == "supervisor":
            continue
        rows.append(
            [
                node.node,
                node.role,
                node.state,
                f"v{node.policy_version}" if node.policy_version >= 0 else "",
                str(node.leases) if node.role == "rollout" else "",
                str(node.trajectories) if node.role in ("rollout", "reward") else "",
                count(round(node.tokens_per_s)) if node.role in ("rollout", "trainer") else "",
                f"{1000 * node.lag_s:.0f}",
                f"{node.silent_s:.1f}",
            ]
        )
    rows += [[node.node, node.role, node.state, *[""] * 6] for node in absent]
    return aligned(rows, right=range(3, 9)) if len(rows) > 1 else ["no node is connected"]


def _away(node: AbsentNode, nodes: Sequence[NodeStatus]) -> str:
    """Since when and why a node is away, and how many of its role are there."""
    gone = "not back since the broker's start" if node.state == "silent" else node.state
    ago = "" if node.ago_s is None else f" {duration(node.ago_s)} ago"
    cause = f": {node.cause}" if node.cause else ""
    there = sum(other.role == node.role for other in nodes)
    return f"{gone}{ago}{cause}; {counted(there, node_of(node.role))} connected"


def _held(containers: ContainerCounts) -> str:
    oldest = f", the oldest for {duration(containers.oldest_s)}" if containers.leased else ""
    failed = f"; {containers.failed} could not be started" if containers.failed else ""
    return f"{containers.leased} run, {containers.warm} warm{oldest}; {containers.started} started so far{failed}"


def _window(status: Status) -> str:
    states = ", ".join(f"{number} {state}" for state, number in status.groups.items() if number)
    return f"{status.open_groups} of {status.window} groups of {status.group_size} open{': ' if states else ''}{states}"


def _metric_rows(run: Status | RunOverview) -> list[Row]:
    metrics = run.metrics
    shown = [
        f"{name} {format(metrics[key], form)}"
        for key, name, form in METRICS
        if isinstance(metrics.get(key), int | float)
    ]
    while len(LAST_STEP) + 2 + len(", ".join(shown)) > COLUMNS:
        shown.pop()
    rows = [[LAST_STEP, ", ".join(shown)]] if shown else []
    if pace := [text(metrics[key]) for key, text in PACE if isinstance(metrics.get(key), int | float)]:
        rows.append([recently(run.step), ", ".join(pace)])
    if run.accuracy is not None:
        first = f"{share(run.base_accuracy)} at first, " if run.base_accuracy is not None else ""
        last = f"{share(run.accuracy)} at the last evaluation{failed_note(run.accuracy_failed)}"
        reward = f", reward {run.held_out_reward:.3f}" if run.held_out_reward is not None else ""
        rows.append(["held out", f"{first}{last}{reward}"])
    return rows


def _waits(nodes: Iterable[NodeStatus]) -> list[Row]:
    """Waiting nodes by what they wait for."""
    names: dict[str, list[str]] = {}
    for node in nodes:
        if node.waits_for:
            names.setdefault(node.waits_for, []).append(node.node)
    return [[f"  {_listed(waiting)}", reason] for reason, waiting in names.items()]


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + rest


# ── top ───────────────────────────────────────────────────────────────────────────────────────
# `asyncrl top`: the state of a run again and again, until it is over.
#
#     terminal ─▶ a screen of its own, redrawn; the last state stays when it ends
#     pipe     ─▶ one block of lines for each look

OPEN, CLOSE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""Codes that open and close the screen of a full-screen program; the cursor is hidden in it."""
REDRAW = "\x1b[H\x1b[J"


async def states(
    where: str, key: Path | None, every_s: float, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> AsyncIterator[RunView]:
    """
    State of a run, every ``every_s`` seconds, until it is over; the last one is from its files, if they are here.

    Raises as `run_state`, and `LinkError` if the broker at an address is lost.
    """
    while True:
        state = await run_state(where, key)
        yield state
        if state.files and not state.is_awaited and state.files.status not in ("running", "paused"):
            return
        if state.live:
            try:
                async with operator(locate(where, key)) as session:
                    while True:
                        await session.pause(every_s)
                        yield RunView(live=await session.ask(StatusWanted(), Status))
            except LinkError:
                if "://" in where:
                    raise
        await sleep(every_s)


class Display:
    """Draws blocks of lines: on a terminal each over the last, otherwise one after another."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = out.isatty()
        self._last: list[str] = []

    def __enter__(self) -> "Display":
        self._write(OPEN if self._is_terminal else "")
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal:
            self._write(CLOSE + "".join(f"{line}\n" for line in self._last))

    def draw(self, lines: list[str]) -> None:
        self._last = lines = [escaped(line) for line in lines]
        if self._is_terminal:
            columns, rows = shutil.get_terminal_size()
            self._write(REDRAW + "\n".join(cropped(lines, columns, rows)))
        else:
            self._write("".join(f"{line}\n" for line in [*lines, ""]))

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def cropped(lines: list[str], columns: int, rows: int) -> list[str]:
    """Lines that fit on a screen; the last one says how many do not."""
    hidden = len(lines) - rows
    shown = lines if hidden <= 0 else [*lines[: rows - 1], f"... {hidden + 1} more lines"]
    return [line if len(line) <= columns else f"{line[: columns - 1]}…" for line in shown]


async def top(where: str, key: Path | None, every_s: float, display: Display) -> None:
    """Show a run until it is over. Raises as `states`."""
    async for state in states(where, key, every_s):
        display.draw([*state_lines(state, where), *([state.unasked] if state.unasked else [])])
