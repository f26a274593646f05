"""What a run waits for before its first step: loading a model takes seconds or many minutes, and looks like nothing."""

from collections.abc import Iterable, Sequence
from typing import Any

FIRST_S = 5.0
"""A run that has not begun by then says what it waits for; again after twice as long, and so on."""
NAMED = 3
BEGINNINGS = ("run.started", "run.resumed")


def awaited(nodes: Sequence[str], events: Iterable[dict[str, Any]]) -> str:
    """
    In words.

    Args:
        nodes: Whoever was started; rollouts and trainers, but nobody else, have something to load.
        events: Of the run, those of its earlier lives included.

    Example:
        "trainer-0 to start, rollout-0 and rollout-1 to load the model"
    """
    joined, ready, are_weights_live = _seen(events)
    to_start = [node for node in nodes if node not in joined]
    to_load = [node for node in nodes if joined.get(node) in ("rollout", "trainer") and node not in ready]
    waits = [f"{_named(to_start)} to start"] if to_start else []
    waits += [f"{_named(to_load)} to load the model"] if to_load else []
    return ", ".join(waits) or ("the first step" if are_weights_live else "the rollouts to get the weights")


def _seen(events: Iterable[dict[str, Any]]) -> tuple[dict[str, str], set[str], bool]:
    """Roles of nodes that are there, those that are ready, and whether rollouts have weights."""
    joined: dict[str, str] = {}
    ready: set[str] = set()
    are_weights_live = False
    for event in events:
        kind, node = event["event"], event.get("node", "")
        if kind in BEGINNINGS:
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
