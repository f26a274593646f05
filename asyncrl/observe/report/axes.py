"""Where numbers lie on paper: ranges that end on round numbers, ticks on multiples of 1, 2 or 5."""

import math
from collections.abc import Sequence

from msgspec import Struct

Point = tuple[float, float]

SMALLEST_SPAN = 1e-300
"""Values closer than this count as equal: a tick's step would be below what a float can hold."""


class Axis(Struct, frozen=True):
    """A range of numbers laid along ``length`` pixels from ``origin``; a negative length runs upwards."""

    low: float
    high: float
    step: float
    """Between two ticks."""
    origin: float
    length: float

    def place(self, value: float) -> float:
        """The pixel of ``value``."""
        return self.origin + self.length * (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Multiples of ``step`` in the range."""
        first, last = math.ceil(self.low / self.step - 1e-9), math.floor(self.high / self.step + 1e-9)
        return [number * self.step for number in range(first, last + 1)]


def tight_axis(values: Sequence[float], origin: float, length: float, *, ticks: int = 8, whole: bool = True) -> Axis:
    """An axis from the smallest value to the largest: for steps and versions, whose ends mean something."""
    low, high = _range(values)
    return Axis(low, high, _step(high - low, ticks, whole), origin, length)


def round_axis(values: Sequence[float], origin: float, length: float, *, ticks: int = 6, zero: bool = False) -> Axis:
    """An axis widened to the next ticks outside the values, and to zero if ``zero``: its foot, if all are zero."""
    is_flat = zero and not any(values)
    low, high = (0.0, 1.0) if is_flat else _range([*values, 0.0] if zero else values)
    step = _step(high - low, ticks, False)
    return Axis(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, step, origin, length)


def thin(points: Sequence[Point], most: int = 800) -> list[Point]:
    """
    At most ``most`` points that draw the same picture: of each stretch of the line, its lowest and highest point.

    More points than pixels only make the file large; means would hide the very spikes one looks for.
    """
    if len(points) <= most:
        return list(points)
    kept = []
    stretches = most // 2
    for number in range(stretches):
        start, end = (len(points) * edge // stretches for edge in (number, number + 1))
        lowest = min(range(start, end), key=lambda place: points[place][1])
        highest = max(range(start, end), key=lambda place: points[place][1])
        kept += [points[place] for place in sorted({lowest, highest})]
    return kept


def _range(values: Sequence[float]) -> Point:
    low, high = min(values, default=0.0), max(values, default=1.0)
    if high - low > max(1e-9 * max(abs(low), abs(high)), SMALLEST_SPAN):
        return low, high
    room = abs(low) / 10 or 0.5
    return low - room, high + room


def _step(span: float, ticks: int, whole: bool) -> float:
    """The smallest of 1, 2, 5, 10, ... times a power of ten that needs no more than ``ticks`` of them."""
    rough = span / max(ticks - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    return max(step, 1.0) if whole else step
