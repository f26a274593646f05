"""
`asyncrl logs` and `events`: what the processes of a run have written, also as they write it.

    runs/NAME/logs/rollout-0.log ─┐
    runs/NAME/logs/trainer-0.log ─┴▶ lines with a time; one without, of a traceback, follows the line before it
"""

import asyncio
import difflib
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click
import msgspec
from msgspec import Struct

from asyncrl.cli.status import opened
from asyncrl.errors import ConfigError
from asyncrl.files.json_lines import JsonLines
from asyncrl.foreign_text import escaped
from asyncrl.messages.spool import HOSTED_SPOOL
from asyncrl.records.events import EVENT_KINDS
from asyncrl.records.formatting import numbered
from asyncrl.records.run_directory import SCREEN, RunDirectory
from asyncrl.records.run_record import is_going_on, is_run, require_run
from asyncrl.spool.folder import ID_BYTES
from asyncrl.terminal import command_line, echo
from asyncrl.workers.printed import PRINTED

T = TypeVar("T")

POLL_S = 0.25
NUMBER = re.compile(r"-\d+$")
"""End of the name of a node of `asyncrl run`, or of a service of the broker's machine."""
FOLDER_ID = re.compile(rf"-[0-9a-f]{{{2 * ID_BYTES}}}$")
"""End of the name of a spool of its own, which it has from its folder."""
NOT_FIELDS = ("timestamp", "event", "node", "level", "name")


class LogLine(Struct, frozen=True):
    """One line of a log."""

    at: str
    """Time, ISO 8601, of this line or the last one before it that has one; empty if none has."""
    node: str
    text: str
    level: str = ""
    """Level of an event; empty for any other text, such as a traceback."""
    about: str = ""
    """Node that this line or the last event before it names; empty if none does."""


LEVELS = ("debug", "info", "warning", "error")


class LogFile:
    """One log, read from its beginning; each `read` continues where the last one ended."""

    def __init__(self, path: Path) -> None:
        self.node = path.stem
        self._path = path
        self._offset = 0
        self._at = self._about = ""

    def read(self) -> list[LogLine]:
        """Complete lines since the last call. A file that was cut short is read from its beginning."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._offset:
                    self._offset = 0
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return []
        complete = content[: content.rfind(b"\n") + 1]
        self._offset += len(complete)
        return [self._line(text) for text in complete.decode(errors="replace").splitlines()]

    def _line(self, text: str) -> LogLine:
        fields = _fields(text)
        self._at = str(fields.get("timestamp") or self._at)
        self._about = str(fields.get("node") or self._about)
        level = str(fields.get("level", "info")) if "event" in fields else ""
        return LogLine(self._at, self.node, text, level, self._about)


class Logs:
    """
    Logs of a run on this machine; ``node`` chooses one. Events below ``level`` are left out.

    ``about`` chooses the lines of one node: the rollouts of a service share a log.
    """

    def __init__(self, directory: RunDirectory, node: str = "", level: str = "debug", *, about: str = "") -> None:
        self._directory = directory
        self._node = node
        self._about = about
        self._hidden = LEVELS[: LEVELS.index(level)]
        self._files: dict[Path, LogFile] = {}

    def read(self) -> list[LogLine]:
        """Lines of all logs since the last call, by time."""
        for path in sorted(self._directory.logs.glob(f"{self._node or '*'}.log")):
            if self._node or path != self._directory.screen:  # what it says has no time, and nodes say it too
                self._files.setdefault(path, LogFile(path))
        lines = [line for file in self._files.values() for line in file.read()]
        shown = [line for line in lines if line.level not in self._hidden and self._about in ("", line.about)]
        return sorted(shown, key=lambda line: line.at)

    def follow(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> AsyncIterator[list[LogLine]]:
        """Lines as they are written, see `followed`."""
        return followed(self._directory, self.read, sleep)


class Followed(Protocol[T]):
    """Lines of a run, each read once."""

    def read(self) -> list[T]: ...

    def follow(self) -> AsyncIterator[list[T]]: ...


def show_last(
    source: Followed[T], texts: Callable[[list[T]], list[str]], number: int | None, *, is_followed: bool
) -> bool:
    """
    Print the last ``number`` lines, all if None, and then, if it is followed, further ones until the run is over.

    Returns True if there were any by the time of the call.
    """

    async def show_further() -> None:
        async for lines in source.follow():
            show(lines)

    def show(lines: list[T]) -> None:
        for text in texts(lines):
            echo(text)

    first = source.read()
    show(first if number is None else first[len(first) - min(number, len(first)) :])
    if is_followed:
        asyncio.run(show_further())
    return bool(first)


async def followed(
    directory: RunDirectory,
    read: Callable[[], list[T]],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[list[T]]:
    """
    Yield what ``read`` returns, again and again, until no process serves the run; for ever if it is on another machine.
    """
    while True:
        is_over = is_run(directory.path) and not is_going_on(directory)
        yield read()
        if is_over:
            return
        await sleep(POLL_S)


def open_screen(where: Path) -> Logs:
    """The lines that `asyncrl run` prints about a run; raises `ConfigError` if there is no run, or none started it."""
    directory = opened(str(where))
    if not directory.screen.is_file():
        raise ConfigError(
            f"{where} was not started by asyncrl run, which alone keeps what it prints; to watch it: "
            f"{command_line('asyncrl', 'top', where)}, or {command_line('asyncrl', 'logs', '-f', where)}"
        )
    return Logs(directory, SCREEN)


def open_logs(where: Path, node: str, level: str = "debug") -> tuple[Logs, list[str]]:
    """
    Logs of a run on this machine, and the names of its nodes that have no log here.

    Raises `ConfigError` if ``where`` is no run directory and has no logs either, or the node has no log here.
    """
    directory = RunDirectory(where)
    here = {path.stem for path in directory.logs.glob("*.log")}
    if not here:
        directory = opened(str(where))
    elsewhere = sorted(known for known in _known(directory) if _log_of(known, here) is None)
    log = _log_of(node, here) if node else ""
    if log is None:
        if node in elsewhere:
            raise ConfigError(elsewhere_note(where, [node]))
        if any(line.about == node for line in Logs(directory).read()):
            return Logs(directory, level=level, about=node), elsewhere
        names = ", ".join(sorted(here)) or "none"
        raise ConfigError(f"{where} has no node {node}; there are logs of: {names}")
    return Logs(directory, log, level), elsewhere


def _log_of(node: str, here: Collection[str]) -> str | None:
    """Log of a node; supervisord writes one for each service of the broker's machine: ``rollout`` of rollout-0 to 3."""
    started_as = FOLDER_ID.sub("", node)
    names = (node, NUMBER.sub("", node), started_as, NUMBER.sub("", started_as))
    return next((name for name in names if name in here), None)


def elsewhere_note(where: Path, nodes: list[str]) -> str:
    """Sentence about nodes without a log here."""
    return (
        f"no log of {', '.join(nodes)} in {RunDirectory(where).logs}: a node of a service logs on its own machine, to "
        "`journalctl -u asyncrl@ROLE` with systemd, to logs/ROLE.log of its --run-dir with supervisord"
    )


def log_lines(lines: Iterable[LogLine], *, as_json: bool, names_node: bool) -> list[str]:
    """Lines for people: time, node, event, fields. Text that is no event stays as it is."""
    if as_json:
        return [line.text for line in lines]
    return [escaped(_readable(line, names_node=names_node).expandtabs()) for line in lines]


def _readable(line: LogLine, *, names_node: bool) -> str:
    head = f"{line.node:<10} " if names_node else ""
    fields = _fields(line.text)
    if "event" not in fields:
        return f"{head}{line.text}"
    if fields["event"] == PRINTED:
        return f"{head}{fields.get('text', '')}"
    level = str(fields.get("level", "info"))
    rest = " ".join(f"{key}={field_text(value)}" for key, value in numbered(fields).items() if key not in NOT_FIELDS)
    about = f" about={field_text(fields['node'])}" if fields.get("node", line.node) != line.node else ""
    time = line.at[11:23]
    return f"{time} {head}{'' if level == 'info' else f'{level}: '}{fields['event']}{about} {rest}".rstrip()


def _fields(text: str) -> dict[str, Any]:
    """Fields of a structured line; empty for any other text."""
    if not text.startswith("{"):
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _known(directory: RunDirectory) -> set[str]:
    """Nodes that ever joined the run, without operators and the spool in the broker's process."""
    joined = [event for event in directory.read_events() if event.get("event") == "node.joined"]
    return {str(event["node"]) for event in joined if event.get("role") != "supervisor"} - {HOSTED_SPOOL}


# ── events ────────────────────────────────────────────────────────────────────────────────────
# `asyncrl events`: the events of a run, chosen by their kinds.

KIND_CHARS = 20
"""Width of the kinds: those of later events are not known."""


class Events:
    """
    Events of a run, in order.

    Args:
        only: Kinds to read, or beginnings of kinds that end with a dot, such as ``node.``; all if empty.
        without: Kinds to leave out, likewise.

    Raises `ConfigError` if there is no run in ``path``, and `click.UsageError` for a kind that no event has.
    """

    def __init__(self, path: Path, only: Collection[str] = (), without: Collection[str] = ()) -> None:
        self._directory = require_run(path)
        self._only = only
        self._without = without
        self._offset = 0
        for name in (*only, *without):
            if not _is_of_any(name, EVENT_KINDS):
                self._require_recorded(name)

    def read(self) -> list[dict[str, Any]]:
        """Events since the last call. Raises `LedgerError` if the file is damaged."""
        return [
            event
            for event, self._offset in JsonLines(self._directory.events).since(self._offset)
            if self._is_chosen(str(event.get("event", "")))
        ]

    def follow(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> AsyncIterator[list[dict[str, Any]]]:
        """Events as they happen, see `followed`."""
        return followed(self._directory, self.read, sleep)

    def _require_recorded(self, name: str) -> None:
        """Raise `click.UsageError` unless the run has an event of this kind: one of a newer version may."""
        kinds = {*EVENT_KINDS, *(str(event.get("event", "")) for event in self._directory.read_events())}
        if not _is_of_any(name, kinds):
            beginnings = sorted({f"{kind.partition('.')[0]}." for kind in kinds})
            close = difflib.get_close_matches(name, [*sorted(kinds), *beginnings], n=1)
            meant = f"did you mean {close[0]!r}?" if close else f"kinds begin with {', '.join(beginnings)}"
            raise click.UsageError(f"no event is of the kind {name!r}: {meant}")

    def _is_chosen(self, kind: str) -> bool:
        return (not self._only or _is_of(kind, self._only)) and not _is_of(kind, self._without)


def _is_of(kind: str, names: Iterable[str]) -> bool:
    return any(kind == name or (name.endswith(".") and kind.startswith(name)) for name in names)


def _is_of_any(name: str, kinds: Iterable[str]) -> bool:
    """True if ``name`` is one of these kinds, or the beginning of one."""
    return any(_is_of(kind, (name,)) for kind in kinds)


def event_lines(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """One line per event: time, kind, and the other fields as ``key=value``, with steps counted from 1."""
    lines = []
    for event in events:
        rest = {key: value for key, value in numbered(event).items() if key not in ("at", "event")}
        fields = " ".join(f"{key}={field_text(value)}" for key, value in rest.items())
        lines.append(escaped(f"{event.get('at', '')}  {event.get('event', ''):<{KIND_CHARS}}  {fields}").rstrip())
    return lines


# ── fields ────────────────────────────────────────────────────────────────────────────────────


def field_text(value: Any) -> str:
    """
    A single word unquoted; anything else as JSON, so that an event stays one line and its fields can be split.
    Fractions have at most six significant digits, whole numbers all of theirs.
    """
    if isinstance(value, str) and value.isprintable() and value and not set(value) & set(' "='):
        return value
    return msgspec.json.encode(_rounded(value)).decode()


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    if isinstance(value, float) and not value.is_integer() and math.isfinite(value):
        return float(f"{value:.6g}")
    return value
