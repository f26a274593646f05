"""A step's line of metrics: the trainer's numbers, statistics of the batch, and the rollouts' waiting time."""

import math
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import asdict

from asyncrl.broker.groups.group import Group, Slot
from asyncrl.broker.nodes.node import Node
from asyncrl.messages.session import ModelUse
from asyncrl.messages.trainer import Stepped
from asyncrl.messages.trajectory import TrajectorySummary
from asyncrl.messages.weights import Live


def batch_metrics(
    groups: Sequence[Group], policy_version: int, max_staleness: int | None = None, *, has_turns: bool = False
) -> dict[str, float]:
    """
    Statistics of a batch that the trainer consumed at ``policy_version``.

    With a ``max_staleness``, ``over_max_staleness`` is the share of trajectories with a larger staleness. If
    trajectories are episodes (``has_turns``), their turns are counted too.
    """
    slots = [slot for group in groups for slot in group.sampled]
    summaries = [slot.summary for slot in slots if slot.summary]
    lengths = [summary.num_tokens for summary in summaries]
    staleness = [policy_version - summary.oldest_version for summary in summaries]
    count = max(len(slots), 1)
    metrics = {
        "reward": sum(slot.reward for slot in slots) / count,
        "accuracy": sum(slot.correct for slot in slots) / count,
        "length_mean": sum(lengths) / count,
        "length_max": float(max(lengths, default=0)),
        "truncated": sum(summary.finish_reason == "length" for summary in summaries) / count,
        "staleness_mean": sum(staleness) / count,
        "staleness_max": float(max(staleness, default=0)),
        "spans_mean": sum(summary.num_spans for summary in summaries) / count,
        "tokens": float(sum(lengths)),
    }
    if max_staleness is not None:
        metrics["over_max_staleness"] = sum(versions > max_staleness for versions in staleness) / count
    if has_turns:
        metrics |= _turn_metrics(summaries)
    return metrics | _verifier_metrics(slots)


def _turn_metrics(summaries: Sequence[TrajectorySummary]) -> dict[str, float]:
    """Means over the episodes, and the most turns; ``truncated`` is the share that a limit has ended."""
    turns, count = [summary.num_turns for summary in summaries], max(len(summaries), 1)
    return {
        "turns_mean": sum(turns) / count,
        "turns_max": float(max(turns, default=0)),
        "branches_mean": sum(summary.num_branches for summary in summaries) / count,
        "context_tokens_mean": sum(summary.context_tokens for summary in summaries) / count,
        "environment_s_mean": sum(summary.environment_s for summary in summaries) / count,
    }


def _verifier_metrics(slots: Sequence[Slot]) -> dict[str, float]:
    """Mean of each further metric of the verifiers, such as parts of the reward, over trajectories that have it."""
    names = dict.fromkeys(name for slot in slots for name in slot.metrics if name != "correct")
    values_by_name = {name: [slot.metrics[name] for slot in slots if name in slot.metrics] for name in names}
    return {f"reward/{name}": sum(values) / len(values) for name, values in values_by_name.items()}


class WaitShare:
    """Share of time between two steps in which rollouts had nothing to sample, from the totals in their heartbeats."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, float]] = {}
        self._last = 0.0

    def share(self, nodes: Iterable[Node]) -> float:
        """Idle share since the last call; the previous value if no heartbeat arrived in between."""
        total_s = sampling_s = 0.0
        for node in nodes:
            seconds = node.beat.seconds
            now = sum(seconds.values()), seconds.get("sampling", 0.0) + seconds.get("swapping", 0.0)
            before = self._before.get(node.peer, (0.0, 0.0))
            total_s += now[0] - before[0]
            sampling_s += now[1] - before[1]
            self._before[node.peer] = now
        if total_s > 0:
            self._last = 1 - sampling_s / total_s
        return self._last


class ModelShare:
    """Use of the models that environments and rewards ask, between two steps, from the totals in heartbeats."""

    def __init__(self) -> None:
        self._before: dict[str, Mapping[str, ModelUse]] = {}

    def metrics(self, nodes: Iterable[Node]) -> dict[str, float]:
        """Sums over the nodes since the last call, such as ``models/judge.requests``."""
        sums: dict[str, float] = {}
        seen: dict[str, Mapping[str, ModelUse]] = {}
        for node in nodes:
            before = self._before.get(node.peer, {})
            for name, use in node.beat.models.items():
                for key, value in asdict(use).items():
                    metric = f"models/{name}.{key}"
                    sums[metric] = sums.get(metric, 0.0) + value - getattr(before.get(name), key, 0)
            seen[node.peer] = node.beat.models
        self._before = seen
        return sums


class SwapTimes:
    """Seconds to receive new weights and seconds decoding paused for them, by version."""

    def __init__(self) -> None:
        self._slowest: dict[int, tuple[float, float]] = {}

    def add(self, live: Live) -> None:
        pause_s, receive_s = self._slowest.get(live.policy_version, (0.0, 0.0))
        self._slowest[live.policy_version] = (max(pause_s, live.pause_s), max(receive_s, live.receive_s))

    def metrics(self, policy_version: int) -> dict[str, float]:
        """Times of the slowest rollout at this version. Earlier versions are forgotten."""
        self._slowest = {version: slowest for version, slowest in self._slowest.items() if version >= policy_version}
        pause_s, receive_s = self._slowest.get(policy_version, (0.0, 0.0))
        return {"pause_s": pause_s, "receive_s": receive_s}


class RunTotals:
    """Sums over a run's steps, for its summary, starting from the ``lines`` written before a restart."""

    def __init__(self, lines: Iterable[Mapping[str, float]] = ()) -> None:
        self._steps: set[int] = set()
        self.tokens = 0
        self.staleness_max = 0
        self._staleness_sum = 0.0
        self.logprob_gap_max: float | None = None
        self._gap_sum = 0.0
        self._gap_tokens = 0.0
        for line in lines:
            self.add(line)

    def __contains__(self, step: object) -> bool:
        return step in self._steps

    @property
    def steps(self) -> int:
        return len(self._steps)

    def add(self, line: Mapping[str, float]) -> None:
        self._steps.add(int(line["step"]))
        self.tokens += int(line["tokens"])
        self.staleness_max = max(self.staleness_max, int(line["staleness_max"]))
        self._staleness_sum += line["staleness_mean"]
        # Not every step has a gap, and a non-finite one is read back as None.
        keys = ("logprob_gap_mean", "logprob_gap_max", "logprob_gap_tokens")
        mean, highest, tokens = (line.get(key) for key in keys)
        if tokens and mean is not None and highest is not None and math.isfinite(mean) and math.isfinite(highest):
            self._gap_sum += mean * tokens
            self._gap_tokens += tokens
            self.logprob_gap_max = max(highest, self.logprob_gap_max or 0.0)

    @property
    def staleness_mean(self) -> float:
        """Mean over steps of each step's mean over trajectories."""
        return self._staleness_sum / max(self.steps, 1)

    @property
    def logprob_gap_mean(self) -> float | None:
        return self._gap_sum / self._gap_tokens if self._gap_tokens else None


def line(
    stepped: Stepped,
    groups: Sequence[Group],
    wait_rollout: float,
    time_s: float,
    max_staleness: int | None = None,
    *,
    has_turns: bool = False,
) -> dict[str, float]:
    """Line of metrics.jsonl for a step."""
    return {
        "step": stepped.step,
        "version": stepped.policy_version,
        "time_s": time_s,
        **batch_metrics(groups, stepped.policy_version, max_staleness, has_turns=has_turns),
        **stepped.metrics,
        "wait_rollout": wait_rollout,
    }
