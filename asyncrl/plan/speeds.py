"""
Speeds of engines and trainers, interpolated between measured points.

    decode     seconds per decode step = a + b x running             a: reading the weights   b: work per completion
    training   seconds per token       = a + b / devices             a: the part that does not scale

Both are piecewise linear through the measured points and extrapolate the outer segments. With a single decode point a
step takes equally long for any number of completions; with a single training point speed is proportional to devices.
"""

from collections.abc import Sequence

from msgspec import Struct

from asyncrl.errors import ConfigError

Point = tuple[float, float]


class Line(Struct, frozen=True):
    """Piecewise linear function; beyond the outer points it continues their segment."""

    points: Sequence[Point]
    """Ordered by x, each x once."""

    def at(self, x: float) -> float:
        """y at x, at least a thousandth of the smallest measured y, because extrapolation may fall below zero."""
        floor = min(y for _, y in self.points) / 1000
        if len(self.points) == 1:
            return self.points[0][1]
        place = next((i for i in range(1, len(self.points) - 1) if x <= self.points[i][0]), len(self.points) - 1)
        (x0, y0), (x1, y1) = self.points[place - 1], self.points[place]
        return max(y0 + (y1 - y0) * (x - x0) / (x1 - x0), floor)


def decode_line(points: Sequence[Point]) -> Line:
    """
    Seconds of one decode step by completions running, from points ``(running, tokens_per_s)`` of one replica.

    Raises ConfigError if two points have the same x, or a step gets faster with more completions.
    """
    line = _line([(running, running / tokens_per_s) for running, tokens_per_s in points], "rollout.decode")
    for (fewer, before_s), (more, after_s) in zip(line.points, line.points[1:], strict=False):
        if after_s < before_s:
            raise ConfigError(
                f"rollout.decode: a step takes {before_s:.4g} s with {fewer:g} running and {after_s:.4g} s with "
                f"{more:g}, but more cannot make it shorter: tokens_per_s is of a replica, not of one completion"
            )
    return line


class TrainingSpeed:
    """Training time as a function of tokens and devices, from points ``(devices, seconds per token)``."""

    def __init__(self, points: Sequence[Point]) -> None:
        if len(points) == 1:
            devices, seconds = points[0]
            points = [(devices, seconds), (2 * devices, seconds / 2)]
        self._line = _line([(1 / devices, seconds) for devices, seconds in points], "trainer.speeds")

    def seconds(self, tokens: float, devices: int) -> float:
        return tokens * self._line.at(1 / devices)


def _line(points: Sequence[Point], key: str) -> Line:
    ordered = sorted(points)
    if len({x for x, _ in ordered}) < len(ordered):
        raise ConfigError(f"{key}: two points have the same first number; keep one of them")
    return Line(ordered)
