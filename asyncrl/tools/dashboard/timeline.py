"""A part of the timeline as it is drawn: for each node the shares of its time, in a bounded number of columns."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from asyncrl.records.formatting import share
from asyncrl.records.measures import finite
from asyncrl.tools.dashboard.cluster_view import role_order
from asyncrl.tools.dashboard.query import Query
from asyncrl.tools.dashboard.time_bands import TimeBands

MAX_COLUMNS = 400
MAX_NODES = 60
"""Nodes of one answer; a long list is asked for in parts."""
MIN_COLUMN_S = 1.5
"""Shortest column: nodes tell their seconds with each heartbeat, so shorter ones have gaps."""
MAX_MARKS = 400
MARKED = {
    "version.live": "publish",
    "eval.finished": "evaluation",
    "node.joined": "joined",
    "node.left": "left",
    "node.lost": "lost",
    "node.exited": "lost",
    "checkpoint.written": "checkpoint",
    "run.resumed": "resumed",
    "run.started": "started",
    "run.finished": "finished",
}
RARE = ("lost", "left", "joined", "resumed", "finished", "evaluation", "checkpoint")
"""Marks that are kept when there are too many."""


class TimelineQuery(Struct, frozen=True, kw_only=True):
    start_s: float | None = None
    end_s: float | None = None
    role: str = ""
    offset: int = 0
    limit: int = MAX_NODES
    columns: int = MAX_COLUMNS

    @classmethod
    def read(cls, query: Query) -> "TimelineQuery":
        return cls(
            start_s=query.number("start"),
            end_s=query.number("end"),
            role=query.text("role"),
            offset=query.count("offset", 0, most=1_000_000),
            limit=query.count("limit", MAX_NODES, most=MAX_NODES),
            columns=max(1, query.count("columns", MAX_COLUMNS, most=MAX_COLUMNS)),
        )


def timeline(bands: TimeBands, events: Sequence[dict[str, Any]], query: TimelineQuery) -> dict[str, Any]:
    """
    Columns are spans, or as many neighbouring spans as fit into the number of columns.

    Returns:
        ``starts`` and ``ends`` of the columns in seconds; ``nodes``, each with its ``shares`` by activity, one number
        a column, of its time from ``joined_s`` to ``heard_s``; ``marks`` of events in that part; and ``extent``, the
        start and end of everything.
    """
    starts, ends = bands.starts_s, bands.ends_s
    times = [float(event["time_s"]) for event in events if isinstance(event.get("time_s"), int | float)]
    whole = (float(min([*starts[:1], 0.0])), float(max([*ends[-1:], *times[-1:], 0.0])))
    low = whole[0] if query.start_s is None else query.start_s
    high = whole[1] if query.end_s is None else query.end_s
    chosen = np.flatnonzero((ends > low) & (starts < high))
    firsts = _firsts(starts, ends, chosen, max((high - low) / query.columns, MIN_COLUMN_S))
    lasts = np.append(firsts[1:] - 1, chosen[-1:]) if len(chosen) else firsts
    places = [place for place, role in enumerate(bands.roles) if not query.role or role == query.role]
    places.sort(key=lambda place: (*role_order(bands.roles[place]), len(bands.nodes[place]), bands.nodes[place]))
    shown = places[query.offset : query.offset + query.limit]
    return {
        "extent": whole,
        "starts": starts[firsts].round(3).tolist(),
        "ends": ends[lasts].round(3).tolist(),
        "activities": bands.activities,
        "roles": sorted(set(bands.roles)),
        "num_nodes": len(places),
        "nodes": _nodes(bands, shown, firsts, lasts, joined=_joined(events), heard=_heard(events)),
        "marks": _marks(events, low, high),
    }


def _firsts(starts: Any, ends: Any, chosen: Any, width_s: float) -> NDArray[np.intp]:
    """The first span of each column; a column is at least ``width_s`` long, but for the last."""
    firsts: list[int] = []
    for span in chosen.tolist():
        if not firsts or ends[span - 1] - starts[firsts[-1]] >= width_s * (1 - 1e-9):
            firsts.append(span)
    return np.array(firsts, np.intp)


def _joined(events: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Time at which each node joined first, in seconds since the run's start."""
    found: dict[str, float] = {}
    for event in events:
        node, time_s = event.get("node"), event.get("time_s")
        if event.get("event") == "node.joined" and isinstance(node, str) and isinstance(time_s, int | float):
            found.setdefault(node, float(time_s))
    return found


def _heard(events: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Time of the last word of each node that is silent or gone, in seconds since the run's start."""
    found: dict[str, float] = {}
    for event in events:
        kind, node, time_s = event.get("event"), event.get("node"), finite(event.get("time_s"))
        if not isinstance(node, str) or time_s is None:
            continue
        if kind == "node.quiet":
            found[node] = time_s - (finite(event.get("seconds")) or 0.0)
        elif kind in ("node.lost", "node.exited", "node.left"):
            found.setdefault(node, time_s)
        elif kind in ("node.heard", "node.ready", "node.joined"):
            found.pop(node, None)
    return found


def _nodes(
    bands: TimeBands,
    places: Sequence[int],
    firsts: Any,
    lasts: Any,
    *,
    joined: Mapping[str, float],
    heard: Mapping[str, float],
) -> list[dict[str, Any]]:
    names = [bands.nodes[place] for place in places]
    joined_s = np.array([joined.get(name, -math.inf) for name in names])
    heard_s = np.array([heard.get(name, math.inf) for name in names])
    facts = [
        {"node": name, "role": bands.roles[place], "joined_s": joined.get(name), "heard_s": heard.get(name)}
        for name, place in zip(names, places, strict=True)
    ]
    if not len(firsts):
        return [fact | {"shares": {}} for fact in facts]
    seconds = bands.seconds[firsts[0] : lasts[-1] + 1]
    summed = np.add.reduceat(seconds[:, list(places)], firsts - firsts[0], axis=0)
    begins = np.maximum(bands.starts_s[firsts][:, None], joined_s)
    widths = np.maximum(np.minimum(bands.ends_s[lasts][:, None], heard_s) - begins, 1e-9)
    # A heartbeat may bring seconds of the span before: a node's parts never fill more than its column.
    shares = summed / np.maximum(widths, summed.sum(axis=2))[:, :, None]
    return [
        fact
        | {
            "shares": {
                activity: shares[:, i, kind].astype(np.float64).round(4).tolist()
                for kind, activity in enumerate(bands.activities)
                if shares[:, i, kind].any()
            },
        }
        for i, fact in enumerate(facts)
    ]


def _marks(events: Sequence[dict[str, Any]], low: float, high: float) -> list[dict[str, Any]]:
    found = []
    for event in events:
        kind, time_s = MARKED.get(str(event.get("event"))), event.get("time_s")
        if kind and isinstance(time_s, int | float) and low <= time_s <= high:
            found.append({"time_s": time_s, "kind": kind, "node": event.get("node"), "text": _text(event)})
    if len(found) > MAX_MARKS:
        rare = [mark for mark in found if mark["kind"] in RARE]
        found = rare[-MAX_MARKS:]
    return found


def _text(event: dict[str, Any]) -> str:
    parts = [str(event.get("event"))]
    if event.get("node"):
        parts.append(str(event["node"]))
    if isinstance(event.get("policy_version"), int):
        parts.append(f"version {event['policy_version']}")
    if isinstance(event.get("accuracy"), int | float):
        parts.append(f"accuracy {share(event['accuracy'])}")
    if event.get("cause"):
        parts.append(str(event["cause"])[:200])
    return ", ".join(parts)
