"""`asyncrl events`: the events of a run, chosen by their kinds, also as they happen."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from asyncrl.cli.inspect import field_text
from asyncrl.cli.logs import followed
from asyncrl.files.json_lines import JsonLines
from asyncrl.foreign_text import escaped
from asyncrl.records.run_record import require_run

KIND_CHARS = 20
"""Width of the kinds: those of later events are not known."""


class Events:
    """
    Events of a run, in order.

    Args:
        only: Kinds to read, or beginnings of kinds that end with a dot, such as ``node.``; all if empty.
        without: Kinds to leave out, likewise.

    Raises `ConfigError` if there is no run in ``path``.
    """

    def __init__(self, path: Path, only: Collection[str] = (), without: Collection[str] = ()) -> None:
        self._directory = require_run(path)
        self._only = only
        self._without = without
        self._offset = 0

    def read(self) -> list[dict[str, Any]]:
        """Events since the last call. Raises `LedgerError` if the file is damaged."""
        found = JsonLines(self._directory.events).since(self._offset)
        self._offset = found[-1][1] if found else self._offset
        return [event for event, _ in found if self._is_chosen(str(event.get("event", "")))]

    def follow(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> AsyncIterator[list[dict[str, Any]]]:
        """Events as they happen, see `followed`."""
        return followed(self._directory, self.read, sleep)

    def _is_chosen(self, kind: str) -> bool:
        return (not self._only or _is_of(kind, self._only)) and not _is_of(kind, self._without)


def _is_of(kind: str, names: Iterable[str]) -> bool:
    return any(kind == name or (name.endswith(".") and kind.startswith(name)) for name in names)


def event_lines(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """One line per event: time, kind, and the other fields as ``key=value``."""
    lines = []
    for event in events:
        rest = {key: value for key, value in event.items() if key not in ("at", "event")}
        fields = " ".join(f"{key}={field_text(value)}" for key, value in rest.items())
        lines.append(escaped(f"{event.get('at', '')}  {event.get('event', ''):<{KIND_CHARS}}  {fields}").rstrip())
    return lines
