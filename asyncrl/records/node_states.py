"""
Nodes of a run as its events tell of them: the state of each, and who is absent.

    node.joined ─▶ loading ─ node.ready ─▶ ready ◀─▶ silent, stalled, barred ─▶ leaving ─▶ left
                      └─ node.lost, node.exited ─▶ absent, until it joins again, or another of its role in its place
    run.resumed ─▶ who was there is silent, and absent until it joins the new broker
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from asyncrl.records.events import BEGINS
from asyncrl.records.measures import finite
from asyncrl.records.states import NodeState

STATES: Mapping[str, NodeState] = {
    "node.joined": "loading",
    "node.ready": "ready",
    "node.quiet": "silent",
    "node.heard": "ready",
    "node.stalled": "stalled",
    "node.moving": "ready",
    "node.barred": "barred",
    "node.admitted": "ready",
    "node.draining": "leaving",
    "node.left": "left",
    "node.lost": "lost",
    "node.exited": "exited",
}
GONE = ("lost", "exited")
AWAY = (*GONE, "left")
LOADING = ("rollout", "trainer")
"""Roles that load a model after they have joined, and say when they are ready."""


class NodeRecord(Struct, kw_only=True):
    name: str
    role: str = ""
    state: NodeState = "loading"
    """State that its events tell: never ``working`` or ``waiting``."""
    cause: str = ""
    """Reason of its state; empty for one that needs none."""
    joined: int = 0
    """Times that it joined."""
    losses: int = 0
    """Times that it was lost, or its process exited."""
    since_s: float | None = None
    """Time of its last change of state, in seconds since the run's start."""


class NodeStates:
    """Every node that an event names, by name; further events may be added as they happen."""

    def __init__(self, events: Iterable[Mapping[str, Any]] = ()) -> None:
        self.nodes: dict[str, NodeRecord] = {}
        self._absent: dict[str, NodeRecord] = {}
        """The one that has been away longest first."""
        for event in events:
            self.add(event)

    @property
    def absent(self) -> list[NodeRecord]:
        """
        Nodes whose place no other has taken, the longest away first; those that left on purpose only while nobody
        of their role is there.
        """
        present = {node.role for node in self.nodes.values() if node.state not in AWAY}
        known = [node for node in self._absent.values() if node.role not in ("", "supervisor")]
        return [node for node in known if node.state != "left" or node.role not in present]

    def add(self, event: Mapping[str, Any]) -> None:
        kind, name = str(event.get("event")), event.get("node")
        if kind in BEGINS:  # A new broker: whoever is there joins it.
            for node in self.nodes.values():
                if node.state not in AWAY:
                    node.state, node.cause, node.since_s = "silent", "", finite(event.get("time_s"))
                    self._absent.setdefault(node.name, node)
        state = STATES.get(kind)
        if state and isinstance(name, str):
            node = self.nodes.setdefault(name, NodeRecord(name=name))
            _follow(node, state, event)
            self._place(node, is_joined=kind == "node.joined")

    def _place(self, node: NodeRecord, *, is_joined: bool) -> None:
        if node.state in AWAY:
            self._absent.setdefault(node.name, node)
        elif not self._absent.pop(node.name, None) and is_joined:
            replaced = next((other.name for other in self._absent.values() if other.role == node.role), "")
            self._absent.pop(replaced, None)


def _follow(node: NodeRecord, state: NodeState, event: Mapping[str, Any]) -> None:
    # A process that exits is noticed twice, and the second notice says less.
    if state in GONE and node.state in GONE:
        node.cause = node.cause or str(event.get("cause") or "")
        return
    if state == "exited" and node.state == "left":
        return
    drained = node.cause if state == "left" and node.state == "leaving" else ""
    node.state = state
    node.role = str(event.get("role") or node.role)
    node.joined += state == "loading"
    if state == "loading" and node.role not in LOADING:
        node.state = "ready"
    node.losses += state in GONE
    node.cause = drained or str(event.get("cause") or (f"drained by {by}" if (by := event.get("by")) else ""))
    if (time_s := finite(event.get("time_s"))) is not None:
        node.since_s = time_s
