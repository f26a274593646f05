"""Describes what a run waits for before its first step: loading a model may take minutes without any output."""

from collections.abc import Iterable, Sequence
from typing import Any

FIRST_S = 5.0
"""Seconds until the first message about what the run waits for; each following one comes after twice the time."""
NAMED = 3
"""Number of nodes listed by name; further ones are counted."""
START_EVENTS = ("run.started", "run.resumed")


def awaited(nodes: Sequence[str], events: Iterable[dict[str, Any]]) -> str:
    """
    Describe what the first step waits for, such as "trainer-0 to start, rollout-0 and rollout-1 to load the model".

    Empty once rollouts have weights: from there on the broker tells what a long silence is about.
    ``nodes`` are all nodes that were started; only rollouts and trainers load a model. ``events`` before the latest
    start of the run are ignored.
    """
    joined, ready, are_weights_live = _seen(events)
    to_start = [node for node in nodes if node not in joined]
    to_load = [node for node in nodes if joined.get(node) in ("rollout", "trainer") and node not in ready]
    waits = [f"{_named(to_start)} to start"] if to_start else []
    waits += [f"{_named(to_load)} to load the model"] if to_load else []
    return ", ".join(waits) or ("" if are_weights_live else "the rollouts to receive the weights")


def _seen(events: Iterable[dict[str, Any]]) -> tuple[dict[str, str], set[str], bool]:
    """Role of each joined node, names of the ready ones, and True if rollouts have received weights."""
    joined: dict[str, str] = {}
    ready: set[str] = set()
    are_weights_live = False
    for event in events:
        kind, node = event["event"], event.get("node", "")
        if kind in START_EVENTS:
            joined, ready, are_weights_live = {}, set(), False
        elif kind == "node.joined":
            joined[node] = event["role"]
            ready.discard(node)
        elif kind == "node.ready":
            ready.add(node)
        elif kind in ("node.left", "node.lost"):
            joined.pop(node, None)
        elif kind == "version.live":
            are_weights_live = True
    return joined, ready, are_weights_live


def _named(nodes: Sequence[str]) -> str:
    if len(nodes) > NAMED:
        return f"{', '.join(nodes[:NAMED])} and {len(nodes) - NAMED} more"
    return " and ".join(filter(None, [", ".join(nodes[:-1]), nodes[-1]]))
