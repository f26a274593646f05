"""Gain from sampling and training at the same time, compared with alternating between them."""

from statistics import median
from typing import NamedTuple

from timeline import Timeline


class Overlap(NamedTuple):
    """Times in seconds and final held-out accuracy of one contender: medians over its rounds."""

    synchronous: dict[str, float]
    asynchronous: dict[str, float]

    def gain(self) -> float:
        """Speed-up: wall time without overlap divided by wall time with overlap."""
        return self.synchronous["wall_s"] / self.asynchronous["wall_s"]

    def ideal_s(self) -> float:
        """Lower bound in seconds: busy time of the busier process, measured without overlap."""
        return max(self.synchronous["rollout_busy_s"], self.synchronous["trainer_busy_s"])

    def ideal_share(self) -> float:
        """Ideal time divided by the time with overlap: 1 if the busier process never waits."""
        return self.ideal_s() / self.asynchronous["wall_s"]


def summary(timelines: list[Timeline]) -> dict[str, float]:
    """Medians over the rounds, by name."""
    wall_s = median(timeline.ends_s[-1] for timeline in timelines)
    busy = {key: median(timeline.notes[key] for timeline in timelines) for key in timelines[0].notes}
    accuracy = median(timeline.accuracies[-1][2] for timeline in timelines)
    return {key: round(value, 3) for key, value in {"wall_s": wall_s, **busy, "accuracy": accuracy}.items()}
