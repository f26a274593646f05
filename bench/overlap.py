"""What it brings that one process samples while the other trains: the same work with overlap and without."""

from statistics import median
from typing import NamedTuple

from course import Course


class Overlap(NamedTuple):
    """Seconds of one contender, and its held-out accuracy at the end: medians of its rounds."""

    synchronous: dict[str, float]
    asynchronous: dict[str, float]

    def gain(self) -> float:
        """How many times faster it is with overlap."""
        return self.synchronous["wall_s"] / self.asynchronous["wall_s"]

    def ideal_s(self) -> float:
        """The busier of the two alone, as busy as without overlap."""
        return max(self.synchronous["rollout_busy_s"], self.synchronous["trainer_busy_s"])

    def ideal_share(self) -> float:
        """How much of the time with overlap is ideal: 1 if the busier of the two is never kept waiting."""
        return self.ideal_s() / self.asynchronous["wall_s"]


def summary(courses: list[Course]) -> dict[str, float]:
    """Medians over the rounds."""
    wall_s = median(course.ends_s[-1] for course in courses)
    busy = {key: median(course.notes[key] for course in courses) for key in courses[0].notes}
    accuracy = median(course.accuracies[-1][2] for course in courses)
    return {key: round(value, 3) for key, value in {"wall_s": wall_s, **busy, "accuracy": accuracy}.items()}
