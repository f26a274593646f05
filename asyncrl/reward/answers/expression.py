"""
Equality of two parsed expressions, by their values: no simplification, which has no bound in time.

    number        exact if both are rational, else 40 digits
    expression    the same variables, and the same value at a few points
    equation      one side minus the other, up to a factor
    set, tuple, matrix, interval, relation      part by part

The parser (latex2sympy2, behind math-verify) evaluates nothing, so a tower of exponents is still a small tree here.
What would be too large to compute ends as `TooLarge`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import mpmath
import sympy
from mpmath import mp
from msgspec import Struct
from sympy.core.relational import Relational
from sympy.logic.boolalg import And

DIGITS = 40
CLOSE = mpmath.mpf(10) ** -25
"""Largest relative difference of equal values."""
NOTHING = mpmath.mpf(10) ** -30
"""Below this, a value that is no written number is a zero that did not quite cancel."""
MAX_POWER = 100_000
"""Largest absolute value of ``exponent · log10(base)``: a number of so many digits."""
MAX_NODES = 400
MAX_FACTORIAL = 1000
POINTS = (1.7320508, 0.5772157, 2.2360680, 0.9159656, 1.2020569, 3.3166248, 0.6931472)
"""Values of variables: nothing that somebody writes by chance."""
SIGNS = ((1, 1, 1), (1, 1, 1), (-1, 1, -1), (1, -1, -1))
"""Signs of the variables at each of the points; those of the first points are positive."""


class Unreadable(Exception):
    """An expression has a part that is not computed here."""


class TooLarge(Unreadable):
    """Computing an expression would take too long."""


def equal(given: Any, answer: Any) -> bool:
    """Return True if two parsed answers are the same. Raises `Unreadable`."""
    if isinstance(given, sympy.MatrixBase) or isinstance(answer, sympy.MatrixBase):
        if not (isinstance(given, sympy.MatrixBase) and isinstance(answer, sympy.MatrixBase)):
            return False
        return given.shape == answer.shape and all(equal(one, other) for one, other in zip(given, answer, strict=True))
    if isinstance(given, Relational | And) or isinstance(answer, Relational | And):
        return same_members(_relations(given), _relations(answer), _equal_relation)
    if isinstance(given, sympy.Expr) and isinstance(answer, sympy.Expr):
        return _equal_values(given, answer)
    if type(given) is not type(answer):
        return False
    if isinstance(given, sympy.FiniteSet):
        return same_members(list(given.args), list(answer.args), equal)
    if isinstance(given, sympy.Interval):
        sides = (given.left_open, given.right_open) == (answer.left_open, answer.right_open)
        return bool(sides) and equal(given.start, answer.start) and equal(given.end, answer.end)
    if isinstance(given, sympy.Union):
        return same_members(list(given.args), list(answer.args), equal)
    return bool(given == answer)


def same_members(given: Sequence[Any], answer: Sequence[Any], same: Callable[[Any, Any], bool]) -> bool:
    """Return True if the two have the same members, in any order."""
    left = list(answer)
    for one in given:
        place = next((place for place, other in enumerate(left) if same(one, other)), None)
        if place is None:
            return False
        del left[place]
    return not left


def _relations(relation: Any) -> list[Any]:
    return list(relation.args) if isinstance(relation, And) else [relation]


def _equal_relation(given: Any, answer: Any) -> bool:
    if not (isinstance(given, Relational) and isinstance(answer, Relational)):
        return False
    if not all(isinstance(side, sympy.Expr) for side in (*given.args, *answer.args)):
        return type(given) is type(answer) and all(map(equal, given.args, answer.args))
    turned = answer.reversed if given.rel_op == answer.reversed.rel_op != answer.rel_op else answer
    if given.rel_op != turned.rel_op:
        return False
    factor = _ratio(given, turned)
    return factor is not None and (given.rel_op in ("==", "!=") or factor > 0)


def _ratio(given: Any, answer: Any) -> Any:
    """Constant factor between the differences of the sides of two relations; None if there is none."""
    symbols = sorted(given.free_symbols | answer.free_symbols, key=str)
    ratios = []
    for at in _points(symbols):
        one, other = (value(side.lhs, at) - value(side.rhs, at) for side in (given, answer))
        if abs(other) < NOTHING or abs(one) < NOTHING:
            if abs(other - one) < NOTHING:
                continue
            return None
        ratios.append(one / other)
    if not ratios or not all(_is_close(one, other) for one, other in pairwise(ratios)):
        return None
    return ratios[0].real if mpmath.im(ratios[0]) == 0 else None


def _equal_values(given: Any, answer: Any) -> bool:
    if sum(1 for _ in sympy.preorder_traversal(given)) > MAX_NODES:
        raise TooLarge
    compared = 0
    for number, at in enumerate(_points(sorted(given.free_symbols | answer.free_symbols, key=str))):
        one, other = value(given, at), value(answer, at)
        is_outside = number > 1 and (mpmath.im(one) != 0 or mpmath.im(other) != 0)
        if is_outside:  # an even root or a logarithm, which its writer takes of what is positive
            continue
        if not _is_close(one, other):
            return False
        compared += 1
    return compared > 0


def _points(symbols: Sequence[Any]) -> list[Mapping[Any, Any]]:
    """Points at which expressions of these variables are compared, one without any. ``i`` is the imaginary unit."""
    found: list[Mapping[Any, Any]] = []
    for number, signs in enumerate(SIGNS):
        at = {}
        for place, symbol in enumerate(symbols):
            size = POINTS[(place + 2 * number) % len(POINTS)] + place // len(POINTS)
            at[symbol] = mpmath.mpc(0, 1) if str(symbol) == "i" else mpmath.mpf(size) * signs[place % len(signs)]
        found.append(at)
        if all(str(symbol) == "i" for symbol in symbols):
            break
    return found


def _is_close(one: Any, other: Any) -> bool:
    if one == other:
        return True
    if not (mpmath.isfinite(one) and mpmath.isfinite(other)):
        return False
    size = max(abs(one), abs(other))
    return bool(size < NOTHING or abs(one - other) <= CLOSE * size)


def value(expression: Any, at: Mapping[Any, Any]) -> Any:
    """
    Compute an expression with 40 digits, at values of its variables.

    Raises:
        TooLarge: It would take too long.
        Unreadable: It has a function that is not known here, or no value, as 1 / 0 has none.
    """
    with mp.workdps(DIGITS):
        try:
            return _value(expression, at)
        except (ZeroDivisionError, ValueError, OverflowError, TypeError) as error:
            raise Unreadable(str(error)) from error


def _value(expression: Any, at: Mapping[Any, Any]) -> Any:
    if expression in at:
        return at[expression]
    if isinstance(expression, sympy.Rational):
        return mpmath.mpf(expression.p) / mpmath.mpf(expression.q)
    if isinstance(expression, sympy.Float):
        return mpmath.mpf(str(expression))
    if expression in CONSTANTS:
        return CONSTANTS[expression]()
    parts = [_value(part, at) for part in expression.args]
    match expression:
        case sympy.Add():
            return mpmath.fsum(parts)
        case sympy.Mul():
            return mpmath.fprod(parts)
        case sympy.Pow():
            return _power(*parts)
        case sympy.exp():
            return _power(mpmath.e, parts[0])
        case sympy.log():
            return mpmath.log(parts[0]) if len(parts) == 1 else mpmath.log(parts[0]) / mpmath.log(parts[1])
        case sympy.factorial():
            return mpmath.factorial(_small(parts[0]))
        case sympy.binomial():
            return mpmath.binomial(_small(parts[0]), _small(parts[1]))
    if (function := FUNCTIONS.get(type(expression))) is None:
        raise Unreadable(type(expression).__name__)
    return function(*parts)


def _power(base: Any, exponent: Any) -> Any:
    if base and abs(exponent) * abs(mpmath.log10(abs(base))) > MAX_POWER:
        raise TooLarge
    if base < 0 if isinstance(base, mpmath.mpf) else False:
        third = exponent * 3
        if exponent != int(exponent) and abs(third - mpmath.nint(third)) < CLOSE:
            return mpmath.cbrt(-base) ** int(mpmath.nint(third)) * (-1) ** int(mpmath.nint(third))  # the real cube root
    return mpmath.power(base, exponent)


def _small(number: Any) -> Any:
    if abs(number) > MAX_FACTORIAL:
        raise TooLarge
    return number


CONSTANTS: Mapping[Any, Callable[[], Any]] = {
    sympy.pi: lambda: +mpmath.pi,
    sympy.E: lambda: +mpmath.e,
    sympy.I: lambda: mpmath.mpc(0, 1),
    sympy.oo: lambda: mpmath.inf,
    -sympy.oo: lambda: -mpmath.inf,
    sympy.GoldenRatio: lambda: +mpmath.phi,
}
FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    **{getattr(sympy, name): getattr(mpmath, name) for name in ("sin", "cos", "tan", "cot", "sec", "csc")},
    **{
        getattr(sympy, name): getattr(mpmath, name) for name in ("sinh", "cosh", "tanh", "asin", "acos", "atan", "acot")
    },
    sympy.UnevaluatedExpr: lambda number: number,
    sympy.gamma: lambda number: mpmath.gamma(_small(number)),
    sympy.Abs: abs,
    sympy.floor: mpmath.floor,
    sympy.ceiling: mpmath.ceil,
    sympy.re: mpmath.re,
    sympy.im: mpmath.im,
    sympy.conjugate: mpmath.conj,
    sympy.asinh: mpmath.asinh,
    sympy.acosh: mpmath.acosh,
    sympy.atanh: mpmath.atanh,
    sympy.Max: max,
    sympy.Min: min,
    sympy.sign: mpmath.sign,
    sympy.erf: mpmath.erf,
    sympy.atan2: mpmath.atan2,
}


def rational(number: Any) -> Any:
    """A `fractions.Fraction` with 40 digits."""
    with mp.workdps(DIGITS):
        return mpmath.mpf(number.numerator) / mpmath.mpf(number.denominator)


# ── number ────────────────────────────────────────────────────────────────────────────────────
# Numbers that are written out, read exactly.
#
#     1,234.50     1 234 567     -1.5\times 10^{3}     1e2     \frac{3}{4}     3/4     1\frac{1}{2}     0.\overline{3}

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
