"""What a simulation tells: figures of the steady state, and two curves to draw."""

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from asyncrl.plan.simulated.trainer import TrainedStep


class SimulationResult(Struct, frozen=True, kw_only=True):
    """A cluster, measured after its warm-up. A step is one optimizer step."""

    devices: int
    rollout_devices: int
    """All of them for the colocated baseline."""
    staleness: float
    step_s: float
    group_s: float
    """Seconds by group: what compares plans of different batches."""
    rollout_idle: float
    """Share of replica seconds with nothing to decode."""
    running: float
    """Completions decoded at once by one replica, on average while it has any."""
    trainer_idle: float
    tokens_per_s: float
    """Completion tokens trained."""
    token_staleness: dict[int, float] = {}
    """Share of trained tokens by versions between the one that wrote them and the trainer's."""
    trajectory_staleness: dict[int, float] = {}
    """The same of trajectories, by their oldest token."""
    peak_open: int = 0
    """Most groups in the window at once."""
    timeline: list[tuple[float, float]] = []
    """(second, completions decoded by all replicas) while it was measured."""

    @property
    def staleness_mean(self) -> float:
        """Of trajectories, as a run reports it."""
        return sum(staleness * share for staleness, share in self.trajectory_staleness.items())

    @property
    def staleness_max(self) -> int:
        """Of trajectories."""
        return max(self.trajectory_staleness, default=0)


def token_staleness(steps: Sequence[TrainedStep]) -> dict[int, float]:
    """Share of tokens by staleness."""
    tokens: Counter[int] = Counter()
    for step in steps:
        for spans in step.spans:
            for span in spans:
                tokens[step.policy_version - span.policy_version] += span.end - span.start
    return _shares(tokens)


def trajectory_staleness(steps: Sequence[TrainedStep]) -> dict[int, float]:
    """Share of trajectories by the staleness of their oldest token."""
    return _shares(
        Counter(step.policy_version - sample.summary.oldest_version for step in steps for sample in step.trajectories)
    )


def completion_tokens(steps: Sequence[TrainedStep]) -> int:
    """Trained in all."""
    return sum(sample.summary.num_tokens for step in steps for sample in step.trajectories)


def _shares(counts: Counter[int]) -> dict[int, float]:
    total = sum(counts.values())
    return {value: counts[value] / total for value in sorted(counts)}
