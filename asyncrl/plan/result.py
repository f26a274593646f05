"""Result of a simulation: averages of the steady state, staleness shares and a timeline."""

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from asyncrl.plan.simulated.trainer import TrainedStep


class SimulationResult(Struct, frozen=True, kw_only=True):
    """A cluster after its warm-up. A step is one optimizer step."""

    devices: int
    rollout_devices: int
    """Equal to ``devices`` for the colocated baseline."""
    staleness: float
    steps_per_publish: int
    step_s: float
    group_s: float
    """Seconds per group; compares plans with different batch sizes."""
    rollout_idle: float
    """Share of replica seconds with nothing to decode."""
    running: float
    """Mean number of completions that a busy replica decodes at once."""
    trainer_idle: float
    tokens_per_s: float
    """Completion tokens trained per second."""
    token_staleness: dict[int, float] = {}
    """Share of trained tokens by staleness of the token."""
    trajectory_staleness: dict[int, float] = {}
    """Share of trained trajectories by staleness of their oldest token."""
    peak_open: int = 0
    """Most groups in the window at once."""
    timeline: list[tuple[float, float]] = []
    """(second, completions being decoded by all replicas) from the end of the warm-up."""

    @property
    def lag(self) -> float:
        """Steps for which the groups of a full window last, less the one they are admitted for: (1 + S) T - 1."""
        return (1 + self.staleness) * self.steps_per_publish - 1

    @property
    def staleness_mean(self) -> float:
        """Mean over trajectories, like the metric of a run."""
        return sum(staleness * share for staleness, share in self.trajectory_staleness.items())

    @property
    def staleness_max(self) -> int:
        return max(self.trajectory_staleness, default=0)


def token_staleness(steps: Sequence[TrainedStep]) -> dict[int, float]:
    tokens: Counter[int] = Counter()
    for step in steps:
        for spans in step.spans:
            for span in spans:
                tokens[step.policy_version - span.policy_version] += span.end - span.start
    return _shares(tokens)


def trajectory_staleness(steps: Sequence[TrainedStep]) -> dict[int, float]:
    """Share of trajectories by staleness of their oldest token."""
    return _shares(
        Counter(
            step.policy_version - trajectory.summary.oldest_version
            for step in steps
            for trajectory in step.trajectories
        )
    )


def completion_tokens(steps: Sequence[TrainedStep]) -> int:
    return sum(trajectory.summary.num_tokens for step in steps for trajectory in step.trajectories)


def _shares(counts: Counter[int]) -> dict[int, float]:
    total = sum(counts.values())
    return {value: counts[value] / total for value in sorted(counts)}
