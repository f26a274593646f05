"""Chart axes: ranges that end on round numbers, with ticks on multiples of 1, 2 or 5 times a power of ten."""

import math
from collections.abc import Sequence

from msgspec import Struct

Point = tuple[float, float]

SMALLEST_SPAN = 1e-300
"""Values closer than this count as equal: the step between ticks would be below the smallest float."""


class Axis(Struct, frozen=True):
    """A range of numbers drawn along ``length`` pixels from ``origin``; a negative length runs upwards."""

    low: float
    high: float
    step: float
    """Distance between two ticks."""
    origin: float
    length: float

    def place(self, value: float) -> float:
        return self.origin + self.length * (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        first, last = math.ceil(self.low / self.step - 1e-9), math.floor(self.high / self.step + 1e-9)
        return [number * self.step for number in range(first, last + 1)]


def tight_axis(values: Sequence[float], origin: float, length: float, *, ticks: int = 8, whole: bool = True) -> Axis:
    """An axis from the smallest value to the largest, for steps and versions; ``whole`` places ticks on integers."""
    low, high = _range(values)
    return Axis(low, high, _step(high - low, ticks, whole), origin, length)


def round_axis(values: Sequence[float], origin: float, length: float, *, ticks: int = 6, zero: bool = False) -> Axis:
    """An axis from tick to tick around the values. With ``zero`` it includes 0; all-zero values get 0 to 1."""
    is_flat = zero and not any(values)
    low, high = (0.0, 1.0) if is_flat else _range([*values, 0.0] if zero else values)
    step = _step(high - low, ticks, False)
    return Axis(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, step, origin, length)


def thin(points: Sequence[Point], most: int = 800) -> list[Point]:
    """At most ``most`` points: the lowest and the highest of each segment, as averages would hide spikes."""
    if len(points) <= most:
        return list(points)
    kept = []
    segments = most // 2
    for number in range(segments):
        start, end = (len(points) * edge // segments for edge in (number, number + 1))
        lowest = min(range(start, end), key=lambda place: points[place][1])
        highest = max(range(start, end), key=lambda place: points[place][1])
        kept += [points[place] for place in sorted({lowest, highest})]
    return kept


def _range(values: Sequence[float]) -> Point:
    low, high = min(values, default=0.0), max(values, default=1.0)
    if high - low > max(1e-9 * max(abs(low), abs(high)), SMALLEST_SPAN):
        return low, high
    margin = abs(low) / 10 or 0.5
    return low - margin, high + margin


def _step(span: float, ticks: int, whole: bool) -> float:
    """The smallest of 1, 2, 5, 10 times a power of ten that covers ``span`` with at most ``ticks`` ticks."""
    rough = span / max(ticks - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    return max(step, 1.0) if whole else step
