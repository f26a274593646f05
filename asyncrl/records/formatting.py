"""Numbers formatted for people: 1.23M tokens, 6 min 52 s, 12.5 %."""

import math
from collections.abc import Mapping
from typing import Any

UNKNOWN = "–"
"""Table cell of a value that was not recorded."""


def count(value: float) -> str:
    """Three significant digits and a suffix: 950, 1.23k, 45.6k, 7.89M. Whole numbers below 1000 keep no decimals."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:
            return f"{_three_digits(value / size)}{suffix}"
    return str(int(value)) if value == int(value) else _three_digits(value)


def counted(number: int, noun: str) -> str:
    """A number of things: 1 turn, 2 turns."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def nth(step: float) -> int:
    """Number of a step for people, who count from 1; rules, messages and files for programs count steps from 0."""
    return int(step) + 1


def ordinal(number: int) -> int:
    """Step, counted from 0, of a number that a person typed."""
    return number - 1


def numbered(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of an event or of a line of a log for people: its ``step``, if it has one, is counted from 1."""
    step = fields.get("step")
    return {**fields, "step": nth(step)} if isinstance(step, int | float) else dict(fields)


class Words(dict[str, Any]):
    """Fields of an event for a sentence. One that an older event lacks reads as a question mark."""

    def __missing__(self, key: str) -> str:
        return "?"


def duration(seconds: float) -> str:
    """The two largest units: 6.5 s, 6 min 52 s, 2 h 14 min."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def share(value: float, decimals: int = 1) -> str:
    """A fraction of 1 as percent."""
    return f"{100 * value:.{decimals}f} %"


def tick(value: float, step: float, *, percent: bool = False) -> str:
    """An axis label with as many decimals as ticks ``step`` apart need."""
    if percent:
        return f"{100 * value:.{_decimals(100 * step)}f} %"
    if value == 0:
        return "0"
    if step < 1e-4:
        return f"{value:.{_decimals(step / 10 ** math.floor(math.log10(abs(value))))}e}".replace("e-0", "e-")
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size and step >= size / 100:
            return f"{value / size:.{_decimals(step / size)}f}{suffix}"
    return f"{value:.{_decimals(step)}f}"


def _three_digits(value: float) -> str:
    return f"{value:#.3g}".rstrip(".")


def _decimals(step: float) -> int:
    """Number of decimals needed to distinguish multiples of ``step``."""
    decimals = 0
    while decimals < 9 and abs(round(step, decimals) - step) > step * 1e-6:
        decimals += 1
    return decimals
