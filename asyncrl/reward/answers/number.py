"""
Numbers that are written out, read exactly.

    1,234.50     1 234 567     -1.5\\times 10^{3}     1e2     \\frac{3}{4}     3/4     1\\frac{1}{2}     0.\\overline{3}
"""

import re
from fractions import Fraction

from msgspec import Struct

MAX_CHARS = 300
"""Longest answer that is read; the longest of the MATH test split has 159."""
SIGNIFICANT = 6
"""Digits of a decimal that may stand for a value with more."""

GROUPED = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:(?:,[0-9]{3})+|(?: [0-9]{3})+)(?![0-9,]| [0-9])")
"""Thousands set apart by commas or by spaces."""
SIGN = r"(?P<sign>[-+]?)\s?"
INTEGER, DECIMAL = r"(?P<whole>[0-9]+)", r"(?P<decimal>[0-9]*\.[0-9]+|[0-9]+\.)"
POWER_OF_TEN = r"(?:[eE]|\s?(?:\\times|\\cdot|\*|x)\s?10\s?\^\s?)\{?\s?(?P<power>[-+]?\s?[0-9]{1,4})\s?\}?"
TOP, UNDER = r"\{\s?(?P<top>-?[0-9]+)\s?\}", r"\{\s?(?P<under>[0-9]+)\s?\}"
IN_LATEX = rf"\\[dtc]?frac\s?(?:{TOP}\s?{UNDER}|(?P<t>[0-9])\s?(?P<u>[0-9]))"
RATIO = rf"(?:{IN_LATEX}|(?P<a>[0-9]+)\s?/\s?(?P<b>[0-9]+))"
WHOLE = re.compile(rf"{SIGN}{INTEGER}(?:{POWER_OF_TEN})?")
POINTED = re.compile(rf"{SIGN}{DECIMAL}(?:{POWER_OF_TEN})?")
FRACTION = re.compile(rf"{SIGN}(?:(?P<mixed>[0-9]+)\s?)?{RATIO}")
REPEATING = re.compile(
    rf"{SIGN}(?P<before>[0-9]*)\.(?P<fixed>[0-9]*)\s?\\(?:overline|bar|dot)\s?\{{?(?P<again>[0-9]{{1,40}})\}}?"
)


class Number(Struct, frozen=True):
    value: Fraction
    digits: int = 0
    """Significant digits of a decimal; 0 for what is exact."""
    step: Fraction = Fraction(0)
    """One in the last place of a decimal."""


def read_number(text: str) -> Number | None:
    """Read a number that is written out; None if it is none."""
    text = GROUPED.sub(lambda found: found[0].replace(",", "").replace(" ", ""), text.strip())
    text = text[1:-1].strip() if text.startswith("{") and text.endswith("}") and "{" not in text[1:] else text
    if len(text) > MAX_CHARS:
        return None
    if found := WHOLE.fullmatch(text):
        return Number(_signed(found["sign"], Fraction(int(found["whole"])) * _ten(found["power"])))
    if found := POINTED.fullmatch(text):
        digits, scale = found["decimal"], _ten(found["power"])
        places = len(digits.partition(".")[2])
        step = Fraction(1, 10**places) * scale
        return Number(_signed(found["sign"], Fraction(digits) * scale), len(digits.replace(".", "").lstrip("0")), step)
    if found := FRACTION.fullmatch(text):
        top, under = found["top"] or found["t"] or found["a"], found["under"] or found["u"] or found["b"]
        is_strange = int(under) == 0 or (found["mixed"] and (int(top) < 0 or int(top) >= int(under)))
        return (
            None
            if is_strange
            else Number(_signed(found["sign"], int(found["mixed"] or 0) + Fraction(int(top), int(under))))
        )
    if found := REPEATING.fullmatch(text):
        fixed, again = found["fixed"], found["again"]
        value = Fraction(int(f"0{found['before']}{fixed}"), 10 ** len(fixed))
        return Number(_signed(found["sign"], value + Fraction(int(again), 10 ** len(fixed) * (10 ** len(again) - 1))))
    return None


def _signed(sign: str, value: Fraction) -> Fraction:
    return -value if sign == "-" else value


def _ten(power: str | None) -> Fraction:
    return Fraction(10) ** int("".join(power.split())) if power else Fraction(1)


def is_rounded(one: Number, other: Number) -> bool:
    """True if one of the two is a decimal of six digits or more that the other, which is exact, is rounded to."""
    decimal, exact = (one, other) if one.digits else (other, one)
    is_decimal = decimal.digits >= SIGNIFICANT and not exact.digits and exact.value.denominator != 1
    return is_decimal and abs(decimal.value - exact.value) <= decimal.step
