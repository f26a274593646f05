"""
Every span, event and attribute of the traces. The tables of ``docs/traces.md`` are these.

    group
    ├── trajectory                    one for each index, and again after a restart of the group
    │   ├── waiting
    │   ├── generating
    │   └── grading
    ├── waiting for the trainer
    ├── training
    └── publishing
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

ROOT = "group"
PREFIX = "asyncrl."
"""Beginning of the names of all attributes outside this package."""


class SpanKind(Struct, frozen=True):
    parent: str
    """Name of the parent; empty for the root."""
    start: str
    end: str
    attributes: tuple[str, ...] = ()


class SpanEventKind(Struct, frozen=True):
    spans: tuple[str, ...]
    """Spans that it occurs in."""
    meaning: str
    attributes: tuple[str, ...] = ()


SPANS: Mapping[str, SpanKind] = {
    ROOT: SpanKind(
        "",
        "admitted to the window",
        "the weights that it helped to make are live, or it is dropped, or left out of its step",
        ("group_id", "epoch", "row", "policy_version", "restarts", "step", "outcome", "resumed"),
    ),
    "trajectory": SpanKind(ROOT, "its group is admitted, or restarted", "rewarded", ("index", "reward")),
    "waiting": SpanKind("trajectory", "no rollout has it", "leased to a rollout"),
    "generating": SpanKind(
        "trajectory",
        "leased to a rollout",
        "stored in a spool",
        (
            "node",
            "lease_id",
            "tokens",
            "oldest_version",
            "newest_version",
            "finish_reason",
            "turns",
            "environment_seconds",
        ),
    ),
    "grading": SpanKind("trajectory", "stored in a spool", "rewarded", ("node", "reward")),
    "waiting for the trainer": SpanKind(ROOT, "its last trajectory is rewarded", "taken by a step", ("step",)),
    "training": SpanKind(ROOT, "taken by a step", "the trainer has done the step", ("step",)),
    "publishing": SpanKind(ROOT, "the trainer has done the step", "its weights are live", ("step", "policy_version")),
}
"""All spans by name."""

EVENTS: Mapping[str, SpanEventKind] = {
    "progress stored": SpanEventKind(
        ("generating",), "an unfinished part is on disk; another rollout could continue it", ("tokens",)
    ),
    "reissued": SpanEventKind(
        ("waiting", "generating"),
        "a lease ended without a result; or its rollout began anew under the same lease",
        ("cause", "tokens"),
    ),
    "assigned": SpanEventKind(("grading",), "sent to a reward node; again if that node is lost", ("node",)),
    "restarted": SpanEventKind((ROOT,), "too old, or its spool was lost: sampled again", ("policy_version", "tokens")),
    "refused": SpanEventKind((ROOT,), "the trainer found a trajectory damaged", ("index", "reason")),
}
"""All events by name."""

ATTRIBUTES: Mapping[str, str] = {
    "group_id": "Ordinal of the group in the data order.",
    "epoch": "Passes over the dataset before this one.",
    "row": "Row of the dataset.",
    "policy_version": "Version that was live at the admission or restart; of `publishing`, the one that became live.",
    "restarts": "Restarts of the group.",
    "step": "Step that trains on the group, counted from 0.",
    "outcome": "`trained`, `dropped`, `untrained`; or `open` if the broker stopped before.",
    "resumed": "True if an earlier broker admitted the group: this span begins with the restart.",
    "index": "Index of the trajectory in its group.",
    "reward": "Reward of the trajectory.",
    "node": "Name of the rollout or reward node; `unknown` if an earlier broker granted the lease.",
    "lease_id": "Lease under which it was sampled.",
    "tokens": "Completion tokens; of an event, those stored so far, or lost.",
    "oldest_version": "Oldest policy version that sampled a token of it.",
    "newest_version": "Newest such version.",
    "finish_reason": "`stop` or `length`.",
    "turns": "Turns of the episode; 1 without an environment.",
    "environment_seconds": "Time that the environment took for all turns.",
    "cause": "Reason in one word, such as `node_lost`, `expired` or `failed`.",
    "reason": "Reason in words.",
}
"""Meaning of every attribute."""


# ── span ──────────────────────────────────────────────────────────────────────────────────────
# Spans of a trace as plain data, before anything of OpenTelemetry.

Attribute = str | int | float | bool


class SpanEvent(Struct, frozen=True):
    """Something that happened at one moment of a span."""

    name: str
    at_s: float
    """Unix time."""
    attributes: dict[str, Attribute] = {}


class TraceSpan(Struct, frozen=True):
    """A span that has ended."""

    name: str
    trace_id: int
    """128 bits."""
    span_id: int
    """64 bits."""
    parent_id: int
    """Span of the same trace; 0 for the root."""
    start_s: float
    """Unix time, as is ``end_s``."""
    end_s: float
    attributes: dict[str, Attribute]
    events: list[SpanEvent]
    error: str = ""
    """Reason of a failure; empty if there is none."""


SendSpans = Callable[[Sequence[TraceSpan]], None]
"""Takes spans over; it returns at once and never raises."""
