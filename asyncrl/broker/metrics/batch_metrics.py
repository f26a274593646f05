"""A step's line of metrics: the trainer's numbers, statistics of the batch, and the rollouts' waiting time."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from asyncrl.broker.groups.group import Group, Slot
from asyncrl.broker.nodes.node import Node
from asyncrl.messages.session import ModelUse
from asyncrl.messages.trainer import Stepped
from asyncrl.messages.trajectory import TrajectorySummary
from asyncrl.messages.weights import Live
from asyncrl.messages.words import Activity
from asyncrl.records.measures import RECENT, Measures, Sums, measures
from asyncrl.records.times import waited_share


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
    """Share of time between two steps in which rollouts waited, from the totals in their heartbeats."""

    def __init__(self) -> None:
        self._before: dict[str, Mapping[Activity, float]] = {}
        self._last = 0.0

    def share(self, nodes: Iterable[Node]) -> float:
        """Idle share since the last call; the previous value if no heartbeat arrived in between."""
        sums: defaultdict[str, float] = defaultdict(float)
        for node in nodes:
            before = self._before.get(node.peer, {})
            for activity, seconds in node.beat.seconds.items():
                sums[activity] += seconds - before.get(activity, 0.0)
            self._before[node.peer] = node.beat.seconds
        if sum(sums.values()) > 0:
            self._last = waited_share(sums)
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
        self._sums = Sums()
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
        self._sums.add(line)
        # Not every step has a gap, and a non-finite one is read back as None.
        keys = ("logprob_gap_mean", "logprob_gap_max", "logprob_gap_tokens")
        mean, highest, tokens = (line.get(key) for key in keys)
        if tokens and mean is not None and highest is not None and math.isfinite(mean) and math.isfinite(highest):
            self._gap_sum += mean * tokens
            self._gap_tokens += tokens
            self.logprob_gap_max = max(highest, self.logprob_gap_max or 0.0)

    @property
    def measures(self) -> Measures:
        """Pace and staleness of all steps."""
        return self._sums.measures

    def as_summary(self) -> dict[str, Any]:
        """The fields of a `RunSummary` that these sums give."""
        found = self.measures
        return {
            "trained_tokens": found.tokens,
            "tokens_per_s": found.tokens_per_s,
            "step_s": found.step_s,
            "wait_trainer": found.wait_trainer,
            "wait_rollout": found.wait_rollout,
            "staleness_mean": found.staleness_mean or 0.0,
            "staleness_max": found.staleness_max,
            "logprob_gap_mean": self.logprob_gap_mean,
            "logprob_gap_max": self.logprob_gap_max,
        }

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
    recent: Sequence[Mapping[str, Any]] = (),
    is_first: bool = False,
    apart_s: float = 0.0,
) -> dict[str, float]:
    """
    Line of metrics.jsonl for a step. Its pace and waiting shares are of the last `RECENT` steps; its seconds are its
    own.

    Args:
        wait_rollout: Part of 1 of the time since the step before in which rollouts waited.
        recent: Lines of the `RECENT` steps before, or fewer.
        is_first: It is the first step of the run, or since a broker was started again, before which models loaded.
        apart_s: Seconds since the step before in which the trainer waited for an operator, who had paused the run.
    """
    made = {
        "step": stepped.step,
        "version": stepped.policy_version,
        "time_s": time_s,
        **batch_metrics(groups, stepped.policy_version, max_staleness, has_turns=has_turns),
        **stepped.metrics,
    }
    if "wait_s" in made:
        apart_s = min(apart_s, made["wait_s"])
        made["wait_s"] -= apart_s
    own_s = _own_seconds(stepped.metrics, time_s)
    lasts_s = time_s - recent[-1]["time_s"] if recent else own_s
    if recent and is_first:
        apart_s += max(lasts_s - own_s, 0.0)
    if apart_s:
        made["apart_s"] = apart_s
    made["step_s"] = lasts_s = max(lasts_s - apart_s, 0.0)
    made["wait_rollout_s"] = wait_rollout * lasts_s
    return made | measures([*recent, made], newest=RECENT).as_metrics()


def _own_seconds(metrics: Mapping[str, float], time_s: float) -> float:
    """Seconds of a first step, as its trainer has them: what precedes it is loading."""
    return sum(metrics.get(key, 0.0) for key in ("wait_s", "train_s", "stage_s")) or time_s
