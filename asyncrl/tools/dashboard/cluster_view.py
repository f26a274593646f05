"""A run as its events and files tell of it: nodes with their shares of time, curves, events by cause, and settings."""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, structs

from asyncrl.config.meanings import meanings
from asyncrl.records import formatting
from asyncrl.records.events import WEIGHTS, WeighedEvent, Weight, news, weighed
from asyncrl.records.formatting import counted, numbered
from asyncrl.records.node_states import AWAY, GONE, NodeRecord, NodeStates
from asyncrl.records.run_record import RunRecord
from asyncrl.records.times import APART, NodeTimes
from asyncrl.tools.dashboard.sample_index import SampleIndex
from asyncrl.tools.dashboard.time_bands import TimeBands
from asyncrl.tools.track import SECRET

NEWEST_SPANS = 20
"""Spans over which the shares of a node's time are taken."""


ANY = 1e-3
"""Least part of 1 of a node's time that is worth a look."""


class NodeView(NodeRecord, kw_only=True):
    version: int | None = None
    """Newest policy version in the samples that it wrote in the newest steps."""
    shares: dict[str, float] = {}
    """Part of 1 of its recent time by activity, the largest first."""
    use: dict[str, float] = {}
    """Parts of 1 of its machine that are in use: ``cores``, ``memory``, ``device``, ``disk``; those that it tells."""


ROLES = ("trainer", "rollout", "reward", "spool")


def nodes(
    events: Sequence[dict[str, Any]], bands: TimeBands, versions: Mapping[str, int], *, is_over: bool = False
) -> list[NodeView]:
    """
    Every node that an event names, by role and name.

    Args:
        versions: Newest version of a node.
        is_over: The run has ended, and with it whoever has not said so.
    """
    found = {name: NodeView(**structs.asdict(node)) for name, node in NodeStates(events).nodes.items()}
    shares = bands.shares(NEWEST_SPANS)
    for place, name in enumerate(bands.nodes):
        node = found.setdefault(name, NodeView(name=name, role=bands.roles[place], state="ready"))
        parts = {bands.activities[i]: float(part) for i, part in enumerate(shares[place]) if part > 0}
        if (rest := 1 - sum(parts.get(activity, 0.0) for activity in APART)) > ANY and node.state != "loading":
            parts = {name: part / rest for name, part in parts.items() if name not in APART}
        node.shares = {name: round(part, 4) for name, part in sorted(parts.items(), key=lambda item: -item[1])}
    end_s = max((time_s for event in events if (time_s := _number(event.get("time_s"))) is not None), default=None)
    for name, node in found.items():
        node.version = versions.get(name)
        if name in bands.last:
            node.use = _use(bands.last[name])
        if is_over and node.state not in AWAY:
            node.state, node.cause, node.since_s = "left", node.cause or "the run is over", end_s
        if node.state in AWAY:
            node.use = {}  # Of its machine, while it was there.
    return sorted(found.values(), key=lambda node: (*role_order(node.role), len(node.name), node.name))


def gone(events: Sequence[dict[str, Any]]) -> list[NodeRecord]:
    """The nodes that were lost, or whose process exited, and whose place nobody has taken."""
    return [node for node in NodeStates(events).absent if node.state in GONE]


def _use(times: NodeTimes) -> dict[str, float]:
    told = {
        "cores": times.cores_busy,
        "memory": times.memory,
        "device": times.device_busy,
        "device memory": times.device_memory,
        "disk": times.disk,
    }
    return {name: round(part, 3) for name, part in told.items() if part > 0}


def role_order(role: str) -> tuple[int, str]:
    """Key by which roles are sorted: those that train and sample first."""
    return (ROLES.index(role) if role in ROLES else len(ROLES)), role


# ── curves ────────────────────────────────────────────────────────────────────────────────────
# The numbers of every step as columns, and histograms of the newest samples.

BINS = 24


def columns(record: RunRecord, start: int) -> dict[str, list[float | None]]:
    """Every metric from the ``start``-th kept step on; None where a step has none."""
    lines = record.metrics[start:]
    return {name: [_shown_number(line.get(name)) for line in lines] for name in record.step_history.names}


def histograms(index: SampleIndex) -> dict[str, dict[str, Any]]:
    """Histograms of staleness, reward and length, of the samples of an index."""
    newest = index.columns
    steps = newest["step"]
    found: dict[str, Any] = {
        "files_waiting": index.num_waiting,
        "steps": {"from": int(steps.min()), "to": int(steps.max())} if len(steps) else {},
        "staleness": _counts(newest["staleness"], whole=True),
        "reward": _counts(newest["reward"], whole=False),
        "length": _counts(newest["num_tokens"], whole=True),
    }
    return found


def _counts(values: "np.ndarray[Any, Any]", *, whole: bool) -> dict[str, Sequence[float]]:
    """Edges of bins, and how many values are in each; whole numbers have bins of whole width, if few a bin each."""
    values = values[np.isfinite(values)]
    if not len(values):
        return {"edges": [], "counts": []}
    low, high = float(values.min()), float(values.max())
    if whole:
        width = max(1, math.ceil((high - low + 1) / BINS))
        edges = np.arange(low - 0.5, high + 0.5 + width, width)
    else:
        edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    counts, _ = np.histogram(values, edges)
    return {"edges": [float(f"{edge:.6g}") for edge in edges], "counts": counts.tolist()}


def _shown_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")


# ── event groups ──────────────────────────────────────────────────────────────────────────────
# The events of a run, those of one kind and one cause together.
#
#     node.lost   no beat for 15.2 s      × 41   12 nodes   first at 3.1 s, last at 88 s
#
# Causes that differ only in numbers, ids or quoted values are one, named by the last of them.

SHOWN = 200
"""Events of a group that are sent: the last ones."""
MAX_GROUPS = 500
MAX_CHARS = 400
CAUSE_CHARS = 100
"""Characters of a cause in a sentence: Events and Cluster have all."""
CAUSES = ("cause", "reason", "error", "status")
"""Fields that say why, the first that is there."""
NOT_DETAILS = ("event", "at", "time_s", "node", "incarnation", *CAUSES)
VARYING = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{8,}\b|[-+]?\d[\d.,_]*(?:e[-+]?\d+)?|'[^']*'|\"[^\"]*\"")


DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{20,}\b")
"""Digests, of which the first digits are told."""


class EventGroup(Struct, frozen=True, kw_only=True):
    id: str
    kind: str
    cause: str
    details: str
    """Fields that tell what happened, for a group without a cause: those of all its events, and of the last alone."""
    num: int
    """Events."""
    counted: int | None
    """The largest count that an event of it names, such as of failed verdicts; None if none does."""
    nodes: list[str]
    first_s: float | None
    last_s: float | None
    last_at: str
    weight: Weight
    """The heaviest of its events'."""
    end: str
    """End of the last of them, such as ``over after 5.9 s``; empty if it did not."""


class EventQuery(Struct, frozen=True, kw_only=True):
    kind: str = ""
    node: str = ""
    text: str = ""
    """Part of any field, in any case."""


def groups(events: Sequence[dict[str, Any]], query: EventQuery) -> list[EventGroup]:
    """Groups of the wanted events: the heaviest first, then the newest."""
    found: dict[str, list[WeighedEvent]] = {}
    for one in weighed(events):
        if is_wanted(one.event, query):
            found.setdefault(group_id(one.event), []).append(one)
    made = [_group(key, members) for key, members in found.items()]
    made.sort(key=lambda group: (WEIGHTS.index(group.weight), -(group.last_s or 0.0)))
    return made[:MAX_GROUPS]


ENDS = ("run.suspended", "run.interrupted", "run.finished")
"""Ends of earlier lives of a run, once it was resumed: none of them was a trouble."""


def trouble_sentence(events: Sequence[dict[str, Any]], otherwise: str) -> str:
    """Tell of trouble that lasts, or ``otherwise``, and of the last trouble that is over; only the first without it."""
    told = [one for one in weighed(events) if not one.is_echo]
    lasting = [one for one in told if one.weight == "trouble"]
    if lasting:
        return f"{counted(len(lasting), 'event')} of trouble, and nothing has ended the last: {_named(lasting[-1])}."
    over = [one for one in told if one.weight == "over" and one.event.get("event") not in ENDS]
    return f"{otherwise} The last trouble was {_named(over[-1])}, {over[-1].end}." if over and otherwise else otherwise


def _named(one: WeighedEvent) -> str:
    event = one.event
    of = f" of {event['node']}" if event.get("node") else ""
    at = "" if (time_s := _number(event.get("time_s"))) is None else f" at {formatting.duration(time_s)}"
    cause = f" ({short_cause(found)})" if (found := _cause(event)) else ""
    return f"{event.get('event')}{of}{at}{cause}"


def short_cause(text: str) -> str:
    """A cause as it stands in a sentence."""
    return text if len(text) <= CAUSE_CHARS else f"{text[:CAUSE_CHARS]} …"


def members(events: Sequence[dict[str, Any]], query: EventQuery, wanted_id: str) -> list[dict[str, Any]]:
    """The last events of a group."""
    found = [event for event in events if is_wanted(event, query) and group_id(event) == wanted_id]
    return [{key: _short(value) for key, value in event.items()} for event in found[-SHOWN:]]


def is_wanted(event: Mapping[str, Any], query: EventQuery) -> bool:
    if query.kind and event.get("event") != query.kind:
        return False
    if query.node and event.get("node") != query.node:
        return False
    return not query.text or query.text.lower() in msgspec.json.encode(event).decode().lower()


def group_id(event: Mapping[str, Any]) -> str:
    key = f"{event.get('event')}\n{VARYING.sub('#', _cause(event))}"
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()[:12]


def _group(key: str, members: Sequence[WeighedEvent]) -> EventGroup:
    found = [one.event for one in members]
    last, times = found[-1], [time for event in found if (time := _number(event.get("time_s"))) is not None]
    counts = [int(count) for event in found if (count := _number(event.get("count"))) is not None]
    return EventGroup(
        id=key,
        kind=str(last.get("event")),
        cause=_cause(last)[:MAX_CHARS],
        details=_details(found)[:MAX_CHARS],
        num=len(found),
        counted=max(counts, default=None),
        nodes=sorted({str(event["node"]) for event in found if event.get("node")}),
        first_s=min(times, default=None),
        last_s=max(times, default=None),
        last_at=str(last.get("at", "")),
        weight=min((one.weight for one in members), key=WEIGHTS.index),
        end=members[-1].end,
    )


def _details(events: Sequence[Mapping[str, Any]]) -> str:
    if told := news(events[-1]):
        return told if len(events) == 1 else f"last: {told}"
    events = [numbered(event) for event in events]
    last = events[-1]
    names = [key for key, value in last.items() if key not in NOT_DETAILS and value not in (None, "")]
    common = [key for key in names if all(event.get(key) == last[key] for event in events)]
    own = [key for key in names if key not in common]
    if last.get("node") and any(event.get("node") != last["node"] for event in events):
        own.insert(0, "node")
    parts = [", ".join(f"{key} {_text(last[key])}" for key in keys) for keys in (common, own)]
    return "; last: ".join(parts) if all(parts) else f"last: {parts[1]}" if parts[1] else parts[0]


def _cause(event: Mapping[str, Any]) -> str:
    return next((str(event[name]) for name in CAUSES if event.get(name)), "")


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return DIGEST.sub(r"\1…", value if isinstance(value, str) else msgspec.json.encode(value).decode())


def _short(value: Any) -> Any:
    return f"{value[:MAX_CHARS]} …" if isinstance(value, str) and len(value) > MAX_CHARS else value


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


# ── settings view ─────────────────────────────────────────────────────────────────────────────
# Every setting of a run with its value, its default and its meaning.

HIDDEN = "hidden"
MATTERS = (
    "model.path",
    "data.train",
    "algorithm.advantage",
    "algorithm.loss",
    "algorithm.kl_coef",
    "trainer.lr",
    "schedule.groups_per_step",
    "schedule.group_size",
    "schedule.staleness",
    "schedule.steps_per_publish",
    "schedule.partial_rollout",
    "sampling.max_tokens",
    "sampling.temperature",
    "rollout.replicas",
    "run.seed",
)
"""Settings that change most what a run learns and how fast: told first, whether they are the default or not."""


def settings(record: RunRecord) -> list[dict[str, Any]]:
    """Every setting: those that matter most, others in the order of the documentation, then keys it does not know."""
    known, live = meanings(), record.live_settings
    values = dict(record.config)
    rows = []
    for key, meaning in known.items():
        value, is_set = _taken(values, key)
        default = msgspec.to_builtins(meaning.default)
        value = value if is_set else default
        is_live, shown = key in live, _shown(key, value)
        rows.append(
            {
                "key": key,
                "value": record.history(key, shown, partial(_shown, key)) if is_live else shown,
                "default": "required" if meaning.is_required else _shown(key, default),
                "is_changed": is_live or (is_set and not meaning.is_required and not _same(value, default)),
                "meaning": meaning.text,
                "matters": key in MATTERS,
            }
        )
    rows += [
        {"key": key, "value": _shown(key, value), "default": "", "is_changed": True, "meaning": "", "matters": False}
        for key, value in values.items()
    ]
    return sorted(rows, key=lambda row: MATTERS.index(row["key"]) if row["matters"] else len(MATTERS))


def _taken(values: dict[str, Any], key: str) -> tuple[Any, bool]:
    """Remove a setting from ``values``: its value, or the table that its keys make; and whether it was there."""
    if key in values:
        return values.pop(key), True
    inner = [name for name in values if name.startswith(f"{key}.")]
    table = {name.removeprefix(f"{key}."): values.pop(name) for name in inner}
    return table, bool(inner)


def _same(value: Any, default: Any) -> bool:
    empty: tuple[Any, ...] = (None, "", [], {})
    return bool(value == default) or (value in empty and default in empty)


def _shown(key: str, value: Any) -> str:
    if SECRET.search(key) and isinstance(value, str) and value:
        return HIDDEN
    if isinstance(value, dict):
        value = {name: HIDDEN if SECRET.search(name) and inner else inner for name, inner in value.items()}
    if value is None:
        return "unset"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
