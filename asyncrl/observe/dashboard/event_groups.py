"""
The events of a run, those of one kind and one cause together.

    node.lost   no beat for 15.2 s      × 41   12 nodes   first at 3.1 s, last at 88 s

Causes that differ only in numbers, ids or quoted values are one, named by the last of them.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

SHOWN = 200
"""Events of a group that are sent: the last ones."""
MAX_GROUPS = 500
MAX_CHARS = 400
CAUSES = ("cause", "reason", "error", "status")
"""Fields that say why, the first that is there."""
NOT_DETAILS = ("event", "at", "time_s", "node", "incarnation", *CAUSES)
VARYING = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{8,}\b|[-+]?\d[\d.,_]*(?:e[-+]?\d+)?|'[^']*'|\"[^\"]*\"")
TROUBLE = re.compile(
    r"\.(lost|exited|rejected|quiet|dropped|failed|aborted|expired|away|skipped|cut|exceeded|slept|left_out|untrained"
    r"|disbanded|started_over|damaged)$|^run\.(waiting|suspended|interrupted)"
)
"""Kinds that somebody may want to look into."""


class EventGroup(Struct, frozen=True, kw_only=True):
    id: str
    kind: str
    cause: str
    last: str
    """Fields of the last event that say what happened, for a group without a cause."""
    num: int
    """Events."""
    counted: int | None
    """The largest count that an event of it names, such as of failed verdicts; None if none does."""
    nodes: list[str]
    first_s: float | None
    last_s: float | None
    last_at: str
    is_trouble: bool


class EventQuery(Struct, frozen=True, kw_only=True):
    kind: str = ""
    node: str = ""
    text: str = ""
    """Part of any field, in any case."""


def groups(events: Sequence[dict[str, Any]], query: EventQuery) -> list[EventGroup]:
    """Groups of the wanted events: trouble first, then the newest."""
    found: dict[str, list[dict[str, Any]]] = {}
    for event in wanted(events, query):
        found.setdefault(group_id(event), []).append(event)
    made = [_group(key, members) for key, members in found.items()]
    made.sort(key=lambda group: (not group.is_trouble, -(group.last_s or 0.0)))
    return made[:MAX_GROUPS]


def members(events: Sequence[dict[str, Any]], query: EventQuery, wanted_id: str) -> list[dict[str, Any]]:
    """The last events of a group."""
    found = [event for event in wanted(events, query) if group_id(event) == wanted_id]
    return [{key: _short(value) for key, value in event.items()} for event in found[-SHOWN:]]


def wanted(events: Sequence[dict[str, Any]], query: EventQuery) -> Iterator[dict[str, Any]]:
    text = query.text.lower()
    for event in events:
        if query.kind and event.get("event") != query.kind:
            continue
        if query.node and event.get("node") != query.node:
            continue
        if text and text not in msgspec.json.encode(event).decode().lower():
            continue
        yield event


def group_id(event: dict[str, Any]) -> str:
    key = f"{event.get('event')}\n{VARYING.sub('#', _cause(event))}"
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()[:12]


def is_trouble(event: dict[str, Any]) -> bool:
    kind = str(event.get("event"))
    if kind == "run.finished":
        return event.get("status") not in ("finished", None)
    return TROUBLE.search(kind) is not None


def _group(key: str, found: Sequence[dict[str, Any]]) -> EventGroup:
    last, times = found[-1], [time for event in found if (time := _number(event.get("time_s"))) is not None]
    counts = [int(count) for event in found if (count := _number(event.get("count"))) is not None]
    return EventGroup(
        id=key,
        kind=str(last.get("event")),
        cause=_cause(last)[:MAX_CHARS],
        last=_details(last)[:MAX_CHARS],
        num=len(found),
        counted=max(counts, default=None),
        nodes=sorted({str(event["node"]) for event in found if event.get("node")}),
        first_s=min(times, default=None),
        last_s=max(times, default=None),
        last_at=str(last.get("at", "")),
        is_trouble=is_trouble(last),
    )


def _cause(event: dict[str, Any]) -> str:
    return next((str(event[name]) for name in CAUSES if event.get(name)), "")


def _details(event: dict[str, Any]) -> str:
    facts = [
        f"{key} {_text(value)}" for key, value in event.items() if key not in NOT_DETAILS and value not in (None, "")
    ]
    return ", ".join(facts)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _short(value: Any) -> Any:
    return f"{value[:MAX_CHARS]} …" if isinstance(value, str) and len(value) > MAX_CHARS else value


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
