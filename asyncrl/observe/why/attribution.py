"""
Attribution of a run's time: seconds of every node by activity, as shares that add up to 1.

    times.jsonl ─▶ all lines ─▶ whole run                      `NodeTimes` of every node, summed
               └─▶ from the first trained step to the last ─▶ steady: without loading, and without the end
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from msgspec import Struct

from asyncrl.messages.words import Role
from asyncrl.observe.times import NodeTimes, TimesLine

APART = ("loading", "waiting for the end of the run", "waiting for an operator")
"""Activities that say nothing about a run's pace."""


class Attribution(Struct, frozen=True):
    """Sums of a stretch of a run."""

    span_s: float
    nodes: Mapping[str, NodeTimes]
    verdicts: int = 0

    def shares(self, role: Role) -> dict[str, float]:
        """Share of the time of all nodes of a role by activity, largest first; they add up to 1. Empty without any."""
        return _shares([node.seconds for node in self.nodes.values() if node.role == role])

    def node_shares(self, name: str) -> dict[str, float]:
        """Share of one node's time by activity, largest first."""
        return _shares([self.nodes[name].seconds])

    def names(self, role: Role) -> list[str]:
        return [name for name, node in self.nodes.items() if node.role == role]

    def speed(self, name: str) -> float:
        """Tokens per second of sampling of a rollout; 0 if it sampled nothing."""
        node = self.nodes[name]
        sampling_s = node.seconds.get("sampling", 0.0)
        return node.tokens / sampling_s if sampling_s else 0.0

    def slow_rollout(self, share: float) -> tuple[str, float]:
        """A rollout that samples at less than ``share`` of the others' median speed, and that; no name if none does."""
        speeds = {name: self.speed(name) for name in self.names("rollout") if self.speed(name)}
        for name, speed in sorted(speeds.items(), key=lambda item: item[1]):
            others = [other for key, other in speeds.items() if key != name]
            if others and speed < share * median(others):
                return name, median(others)
        return "", 0.0


def attribute(lines: Sequence[TimesLine], *, is_steady: bool = False) -> Attribution:
    """Sum lines; ``is_steady`` leaves out what precedes the first trained step, and what says nothing of its pace."""
    if is_steady:
        lines = [line for line in lines[1:] if line.span_s > 0] or list(lines)
    sums: dict[str, _Sum] = {}
    for line in lines:
        for name, node in line.nodes.items():
            sums.setdefault(name, _Sum(node.role)).add(node, without=APART if is_steady else ())
    return Attribution(
        sum(line.span_s for line in lines),
        {name: total.times for name, total in sums.items()},
        sum(line.verdicts for line in lines),
    )


class _Sum:
    def __init__(self, role: Role) -> None:
        self._role = role
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._tokens = 0
        self._memory_stall = 0.0
        self._decode_steps = 0.0
        self._total_s = self._cores_busy_s = 0.0

    def add(self, node: NodeTimes, without: Iterable[str]) -> None:
        for activity, seconds in node.seconds.items():
            if activity not in without:
                self._seconds[activity] += seconds
        self._tokens += node.tokens
        self._memory_stall = max(self._memory_stall, node.memory_stall)
        self._decode_steps += node.decode_steps
        total_s = sum(node.seconds.values())
        self._total_s += total_s
        self._cores_busy_s += node.cores_busy * total_s

    @property
    def times(self) -> NodeTimes:
        busy = self._cores_busy_s / self._total_s if self._total_s else 0.0
        return NodeTimes(self._role, dict(self._seconds), self._tokens, self._memory_stall, self._decode_steps, busy)


def _shares(of_nodes: Iterable[Mapping[str, float]]) -> dict[str, float]:
    sums: defaultdict[str, float] = defaultdict(float)
    for seconds in of_nodes:
        for activity, value in seconds.items():
            sums[activity] += value
    total_s = sum(sums.values())
    return {name: value / total_s for name, value in sorted(sums.items(), key=lambda item: -item[1])} if total_s else {}
