"""The nodes of a run as its events tell of them, with their shares of time and the newest version that they wrote."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from asyncrl.observe.dashboard.timeline.time_bands import TimeBands

NEWEST_SPANS = 20
"""Spans over which the shares of a node's time are taken."""


class NodeView(Struct, kw_only=True):
    name: str
    role: str = ""
    state: str = "joined"
    """``joined`` (loading), ``ready``, ``quiet``, ``draining``, ``left``, ``lost`` or ``exited``."""
    cause: str = ""
    """Reason of its last end."""
    joined: int = 0
    """Times that it joined."""
    losses: int = 0
    """Times that it was lost, or its process exited."""
    since_s: float | None = None
    """Time of its last change of state, in seconds since the run's start."""
    version: int | None = None
    """Newest policy version in the samples that it wrote."""
    shares: dict[str, float] = {}
    """Part of 1 of its recent time by activity, the largest first."""


STATES = {
    "node.joined": "joined",
    "node.ready": "ready",
    "node.quiet": "quiet",
    "node.heard": "ready",
    "node.stalled": "stalled",
    "node.moving": "ready",
    "node.barred": "barred",
    "node.admitted": "ready",
    "node.draining": "draining",
    "node.left": "left",
    "node.lost": "lost",
    "node.exited": "exited",
}
ROLES = ("trainer", "rollout", "reward", "spool")
GONE = ("lost", "exited")
LOADING = ("rollout", "trainer")
"""Roles that load a model after they have joined, and say when they are ready."""


def nodes(events: Sequence[dict[str, Any]], bands: TimeBands, versions: Mapping[str, int]) -> list[NodeView]:
    """Every node that an event names, by role and name; ``versions`` has the newest version of a node."""
    found: dict[str, NodeView] = {}
    for event in events:
        state, name = STATES.get(str(event.get("event"))), event.get("node")
        if state and isinstance(name, str):
            _follow(found.setdefault(name, NodeView(name=name)), state, event)
    shares = bands.shares(NEWEST_SPANS)
    for place, name in enumerate(bands.nodes):
        node = found.setdefault(name, NodeView(name=name, role=bands.roles[place], state="ready"))
        parts = {bands.activities[i]: round(float(part), 4) for i, part in enumerate(shares[place]) if part > 0}
        node.shares = dict(sorted(parts.items(), key=lambda item: -item[1]))
    for name, node in found.items():
        node.version = versions.get(name)
    return sorted(found.values(), key=lambda node: (*role_order(node.role), len(node.name), node.name))


def role_order(role: str) -> tuple[int, str]:
    """Key by which roles are sorted: those that train and sample first."""
    return (ROLES.index(role) if role in ROLES else len(ROLES)), role


def _follow(node: NodeView, state: str, event: dict[str, Any]) -> None:
    # A process that exits is noticed twice, and the second notice says less.
    if state in GONE and node.state in GONE:
        node.cause = node.cause or str(event.get("cause") or "")
        return
    if state == "exited" and node.state == "left":
        return
    node.state = state
    node.role = str(event.get("role") or node.role)
    node.joined += state == "joined"
    if state == "joined" and node.role not in LOADING:
        node.state = "ready"
    node.losses += state in GONE
    if state in (*GONE, "left"):
        node.cause = str(event.get("cause") or "")
    if isinstance(event.get("time_s"), int | float):
        node.since_s = float(event["time_s"])
