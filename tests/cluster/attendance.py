"""Nodes of a run by its events: who is at work, and how often each has joined."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

Events = Iterable[Mapping[str, Any]]
STARTS = ("run.started", "run.resumed")
WITH_MODEL = ("rollout", "trainer")
"""Roles that are at work when their model is loaded, some time after they have joined."""


def present(events: Events) -> frozenset[str]:
    """Names of the nodes at work: ready under the current broker, and neither gone nor lost."""
    found: set[str] = set()
    for event in events:
        match event["event"]:
            case "node.joined" if event["role"] in WITH_MODEL:
                found.discard(event["node"])
            case "node.joined" | "node.ready":
                found.add(event["node"])
            case "node.left" | "node.lost":
                found.discard(event["node"])
            case kind if kind in STARTS:
                found.clear()
    return frozenset(found)


def joins(events: Events) -> Counter[str]:
    """How often each node has joined."""
    return Counter(event["node"] for event in events if event["event"] == "node.joined")


def is_restored(before: Events, now: Events, ended: Collection[str]) -> bool:
    """
    True if every node that was at work is at work again.

    Args:
        before: Events until something happened to the run.
        now: All events.
        ended: Nodes whose processes have ended since then: each must have joined again.
    """
    earlier, later = joins(before), joins(now)
    return present(before) <= present(now) and all(later[node] > earlier[node] for node in ended)
