"""
Values of expressions: by fractions where they are exact, otherwise by as many digits as the numbers ask for.

    2^{2018} - 1, 30!, 8^{1/3}, (x + 1/2)^2 at x = 7/3      fractions
    \\sqrt{2}, \\sin 3, \\ln x at x = 7/3                      mpmath: more than twice the digits of its numbers

Two expressions are equal if they are at a few values of their letters. Nothing is simplified, which has no bound in
time; what would be too large to compute is `TooLarge`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import mpmath
from mpmath import mp
from mpmath.libmp import NoConvergence
from msgspec import Struct


class Number(Struct, frozen=True):
    """A number that is written out."""

    value: Fraction
    digits: int = 0
    """Significant digits of a decimal; 0 for a whole number or a repeating decimal."""
    step: Fraction = Fraction(0)
    """One in the last place of a decimal."""


class Symbol(Struct, frozen=True):
    """A letter, or a constant of `CONSTANTS`."""

    name: str


class Operation(Struct, frozen=True):
    """A function of `EXACT` or `FUNCTIONS` and what it is applied to."""

    name: str
    parts: tuple["Expression", ...]


Expression = Number | Symbol | Operation


class Unreadable(Exception):
    """There is no value, such as that of 1 / 0, or it is not read here."""


class TooLarge(Exception):
    """Reading or computing it would take too long."""


MAX_BITS = 400_000
"""Size of the largest number that is computed."""
MAX_FACTORIAL = 1000
DIGITS, MAX_DIGITS = 60, 1500
"""Digits of a value that is no fraction, beside twice those of the largest and smallest on the way; and the most."""
WHOLE_POINTS = tuple(
    tuple(map(Fraction, point))
    for point in (
        (12, 23, 35, 18, 27, 44, 14, 33, 21),
        (17, 10, 28, 39, 16, 25, 30, 9, 45),
        (103, 64, 77, 50, 91, 86, 72, 65, 58),
        (40, 31, 22, 63, 48, 29, 55, 34, 26),
        (-14, -9, -20, 15, -8, -37, -24, -11, -6),
    )
)
POINTS = tuple(
    tuple(map(Fraction, point.split()))
    for point in (
        "1753/970 577/1202 2239/997 919/1213 1811/1510 3319/1009 701/1327 2903/1104 1289/764",
        "421/970 388/1511 719/1042 263/1103 905/1334 617/983 1151/1280 89/510 333/1009",
        "-1487/1153 2131/1200 -907/1381 -3109/1018 1429/1091 -613/1034 2713/1439 -1999/870 977/1008",
        "947/1170 -2003/1069 -1789/1277 2549/1086 -1097/1249 653/1013 -3461/1320 811/1206 -1511/790",
    )
)
"""Values of the first, second, ... letter: nothing that somebody writes."""
COUNTS = frozenset("nmkN")
"""Letters that stand for whole numbers if no others are beside them."""


def letters(expression: Expression) -> set[str]:
    """Letters of an expression that stand for any value."""
    match expression:
        case Symbol(name):
            return set() if name in CONSTANTS else {name}
        case Operation(_, parts):
            return {name for part in parts for name in letters(part)}
    return set()


def equal(one: Expression, other: Expression) -> bool:
    """True if both have the same value, whatever that of their letters is. Raises `Unreadable` and `TooLarge`."""
    compared, outside, missed = 0, [], None
    for at in _points(one, other):
        try:
            is_real, is_same = _at(at, one, other)
        except (Unreadable, TooLarge) as error:  # a denominator is zero there, or a tower grows
            missed = error
            continue
        if not is_real:
            outside.append(is_same)
        elif not is_same:
            return False
        compared += is_real
    if not compared and not outside and missed:
        raise missed
    return compared > 0 or all(outside)  # even roots and logarithms are taken of what is positive, where it is any


def _at(at: Mapping[str, Fraction], one: Expression, other: Expression) -> tuple[bool, bool]:
    """True for two real values there, and for two that are equal."""
    try:
        return True, exact(one, at) == exact(other, at)
    except Inexact:
        given, wanted, close = _digits((one, other), at)
        return _is_real(given) and _is_real(wanted), close(given, wanted)


def sign_of_ratio(one: Expression, other: Expression) -> int | None:
    """
    Sign of the constant by which ``other`` is multiplied in ``one``; None if there is no such constant.

    Raises:
        Unreadable: One of them has no value.
    """
    ratios: list[Any] = []
    for at in _points(one, other):
        try:
            top, under = exact(one, at), exact(other, at)
            zeros = [top == 0, under == 0]
        except Inexact:
            top, under, close = _digits((one, other), at)
            if not (_is_real(top) and _is_real(under)):
                continue
            top, under = mpmath.re(top), mpmath.re(under)
            zeros = [close(top, 0), close(under, 0)]
        if not any(zeros):
            ratios.append(top / under)
        elif not all(zeros):
            return None
    if not ratios or not all(_is_near(ratios[0], value) for value in ratios):
        return None
    return 1 if ratios[0] > 0 else -1


def linear(expression: Expression, name: str) -> tuple[Fraction, Fraction] | None:
    """Slope and constant of an expression in one letter; None if it is no line, or not of fractions."""
    match expression:
        case Symbol(letter) if letter == name:
            return Fraction(1), Fraction(0)
        case Operation("+" | "-" | "*" | "/" as sign, (one, other)):
            left, right = linear(one, name), linear(other, name)
            if left is None or right is None:
                return None
            if sign in "+-":
                return EXACT[sign](left[0], right[0]), EXACT[sign](left[1], right[1])
            if sign == "*" and right[0]:
                left, right = right, left
            if right[0] or (sign == "/" and not right[1]):
                return None
            return EXACT[sign](left[0], right[1]), EXACT[sign](left[1], right[1])
    try:
        return None if letters(expression) else (Fraction(0), exact(expression, {}))
    except Inexact:
        return None


def within(expression: Expression, center: Fraction, reach: Fraction) -> bool:
    """True if the value of an expression without letters is so close to ``center``."""
    try:
        return abs(exact(expression, {}) - center) <= reach
    except Inexact:
        found, wanted, _ = _digits((expression, Number(center)), {})
        return bool(abs(found - wanted) <= mpmath.mpf(reach.numerator) / reach.denominator)


def written(expression: Expression, *, max_bits: int, digits: int) -> str:
    """Value of an expression without letters: a fraction, empty if it is longer than that, or so many digits."""
    try:
        number = exact(expression, {})
    except Inexact:
        found, _, close = _digits((expression, Number(Fraction(0))), {})
        return "0" if close(found, 0) else str(mpmath.nstr(mpmath.re(found) if _is_real(found) else found, digits))
    return str(number) if max(number.numerator.bit_length(), number.denominator.bit_length()) <= max_bits else ""


def _points(*expressions: Expression) -> Iterator[Mapping[str, Fraction]]:
    """Values of their letters, several times; once none if they have no letters."""
    names = sorted({name for expression in expressions for name in letters(expression)})
    if len(names) > len(POINTS[0]):
        raise TooLarge
    points = WHOLE_POINTS if COUNTS.issuperset(names) else (*WHOLE_POINTS, *POINTS)
    yield from (dict(zip(names, point, strict=False)) for point in points[: None if names else 1])


# ── fractions ─────────────────────────────────────────────────────────────────────────────────


class Inexact(Exception):
    """A value is no fraction, or is not computed as one."""


def exact(expression: Expression, at: Mapping[str, Fraction]) -> Fraction:
    """Compute an expression; raises `Inexact` if its value is not a fraction, `Unreadable` if it has no value."""
    match expression:
        case Number(value):
            return value
        case Symbol(name):
            if name not in at:
                raise Inexact
            return at[name]
        case Operation(name, parts) if name in EXACT:
            try:
                return EXACT[name](*(exact(part, at) for part in parts))
            except (ZeroDivisionError, TypeError, ValueError) as error:
                raise Unreadable(str(error)) from error
    raise Inexact


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    root, times = _root(base, Fraction(exponent.denominator)), exponent.numerator
    if abs(times) * (max(root.numerator.bit_length(), root.denominator.bit_length()) - 1) > MAX_BITS:
        raise TooLarge
    return root**times


def _root(value: Fraction, degree: Fraction) -> Fraction:
    number = int(degree)
    if number != degree or number < 1 or (value < 0 and number % 2 == 0):
        raise Inexact
    sign = -1 if value < 0 else 1
    return sign * Fraction(_whole_root(abs(value.numerator), number), _whole_root(value.denominator, number))


def _whole_root(value: int, degree: int) -> int:
    """Root of a whole number, by Newton's method from above; raises `Inexact` if that is not whole."""
    if degree > value.bit_length() > 1:
        raise Inexact
    root = 1 << -(-value.bit_length() // degree)
    while root and (lower := ((degree - 1) * root + value // root ** (degree - 1)) // degree) < root:
        root = lower
    if root**degree != value:
        raise Inexact
    return root


def _factorial(number: Fraction) -> Fraction:
    if number.denominator != 1 or number < 0:
        raise Inexact
    if number > MAX_FACTORIAL:
        raise TooLarge
    return Fraction(math.factorial(int(number)))


def _binomial(top: Fraction, under: Fraction) -> Fraction:
    if top.denominator != 1 or under.denominator != 1 or under < 0 or top < 0:
        raise Inexact
    if top > MAX_FACTORIAL:
        raise TooLarge
    return Fraction(math.comb(int(top), int(under)))


def _of_whole(function: Callable[..., int]) -> Callable[..., Fraction]:
    def of(*numbers: Fraction) -> Fraction:
        if any(number.denominator != 1 for number in numbers):
            raise Unreadable("expected whole numbers")
        return Fraction(function(*map(int, numbers)))

    return of


EXACT: Mapping[str, Callable[..., Fraction]] = {
    "+": lambda one, other: one + other,
    "-": lambda one, other: one - other,
    "*": lambda one, other: one * other,
    "/": lambda one, other: one / other,
    "^": _power,
    "root": _root,
    "!": _factorial,
    "binom": _binomial,
    "abs": abs,
    "floor": lambda number: Fraction(math.floor(number)),
    "ceil": lambda number: Fraction(math.ceil(number)),
    "max": max,
    "min": min,
    "gcd": _of_whole(math.gcd),
    "lcm": _of_whole(math.lcm),
}

# ── digits ────────────────────────────────────────────────────────────────────────────────────


def _digits(
    expressions: Sequence[Expression], at: Mapping[str, Fraction]
) -> tuple[Any, Any, Callable[[Any, Any], bool]]:
    """Values of two expressions by digits, and whether two values are as close as those can be."""
    sizes: list[int] = []
    with mp.workdps(DIGITS):
        for expression in expressions:
            _value(expression, at, sizes)
    size = max(map(abs, sizes), default=0) * 0.30103  # decimal digits of so many bits
    if DIGITS + 2 * size > MAX_DIGITS:
        raise TooLarge
    digits = DIGITS + 2 * math.ceil(size)
    with mp.workdps(digits):
        one, other = (_value(expression, at, []) for expression in expressions)
        allowed = mpmath.mpf(10) ** (math.ceil(size) - digits + 15)

    def close(one: Any, other: Any) -> bool:
        with mp.workdps(digits):
            return bool(
                one == other or (mpmath.isfinite(one) and mpmath.isfinite(other) and abs(one - other) < allowed)
            )

    return one, other, close


def _is_near(one: Any, other: Any) -> bool:
    """True if two values are equal; those that are no fractions, to the digits that are computed at least."""
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one == other
    one, other = (
        mpmath.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value
        for value in (one, other)
    )
    return bool(abs(one - other) < mpmath.mpf(10) ** (20 - DIGITS) * abs(one))


def _is_real(value: Any) -> bool:
    return bool(abs(mpmath.im(value)) <= abs(value) * mpmath.mpf(10) ** (20 - DIGITS))


def _value(expression: Expression, at: Mapping[str, Fraction], sizes: list[int]) -> Any:
    """Value with the digits of mpmath's context; the size of each value on the way, in bits, goes to ``sizes``."""
    try:
        found = exact(expression, at)
        value = mpmath.mpf(found.numerator) / found.denominator
    except Inexact:
        match expression:
            case Symbol(name) if name in CONSTANTS:
                value = CONSTANTS[name]()
            case Operation(name, parts) if name in FUNCTIONS:
                try:
                    value = FUNCTIONS[name](*(_value(part, at, sizes) for part in parts))
                except (ZeroDivisionError, ValueError, OverflowError, TypeError, NoConvergence) as error:
                    raise Unreadable(str(error)) from error
            case _:
                raise Unreadable("it has no value") from None
    if mpmath.isnan(value):
        raise Unreadable("it has no value")
    if value and mpmath.isfinite(value):
        sizes.append(int(mpmath.mag(value)))
    return value


def _real_power(base: Any, exponent: Any) -> Any:
    if base and mpmath.isfinite(base) and abs(exponent) * (abs(mpmath.mag(base)) + 1) > MAX_BITS:
        raise TooLarge
    return mpmath.power(base, exponent)


def _real_root(value: Any, degree: Any) -> Any:
    is_odd = degree == int(degree) and degree % 2 == 1
    return (
        -mpmath.root(-value, int(degree))
        if is_odd and _is_real(value) and mpmath.re(value) < 0
        else _real_power(value, 1 / degree)
    )


def _rounded(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``function`` of a value, or the whole number that it is but for its last digits."""

    def of(value: Any) -> Any:
        whole = mpmath.nint(value)
        return whole if abs(value - whole) < mpmath.mpf(10) ** (20 - mp.dps) else function(value)

    return of


def _of_small(function: Callable[..., Any]) -> Callable[..., Any]:
    def of(*values: Any) -> Any:
        if any(value and mpmath.mag(value) > MAX_FACTORIAL.bit_length() for value in values):
            raise TooLarge
        return function(*values)

    return of


def _logarithm(value: Any, base: Any) -> Any:
    return mpmath.log(value) / mpmath.log(base)


CONSTANTS: Mapping[str, Callable[[], Any]] = {
    "\\pi": lambda: +mpmath.pi,
    "e": lambda: +mpmath.e,
    "i": lambda: mpmath.mpc(0, 1),
    "\\infty": lambda: mpmath.inf,
}
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: function for name, function in EXACT.items() if name in {"+", "-", "*", "/", "abs", "max", "min"}},
    **{name: getattr(mpmath, name) for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh")},
    **{f"arc{name}": getattr(mpmath, f"a{name}") for name in ("sin", "cos", "tan", "cot", "sec", "csc")},
    "exp": mpmath.exp,
    "ln": mpmath.log,
    "log": _logarithm,
    "^": _real_power,
    "root": _real_root,
    "!": _of_small(mpmath.factorial),
    "binom": _of_small(mpmath.binomial),
    "floor": _rounded(mpmath.floor),
    "ceil": _rounded(mpmath.ceil),
}
