r"""
Equality of two answers: ``\frac{1}{2}`` and ``0.5``, ``(x+1)^2`` and ``x^2 + 2x + 1``, ``3 km`` and ``3000 m``.

    notation ─ tokens ─▶ structure ─ a tree ─▶ compared part by part
                            │ expression, units            │ value

Hostile text is expected: everything is linear or bounded, and what would take long to compute is no answer.
"""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import combinations
from typing import NamedTuple

from asyncrl.errors import VerifierError
from asyncrl.reward.answers import value
from asyncrl.reward.answers.notation import Token, tokens
from asyncrl.reward.answers.structure import (
    TURNED,
    Answer,
    Based,
    Labelled,
    Matrix,
    Members,
    Quantity,
    Ratio,
    Relation,
    SetOperation,
    Text,
    read,
)
from asyncrl.reward.answers.units import Measure, conversion
from asyncrl.reward.answers.value import Expression, Inexact, Number, Operation, Symbol, TooLarge, Unreadable

MAX_CHARS = 300
"""Longest answer that is read; the longest of the MATH test split has 159."""
CPU_S = 0.4
"""CPU time in which an answer must be read and compared; what takes longer is a wrong one."""
AGAIN_S = 0.05
"""CPU time until the next `TooSlow`: one in a finalizer, or in a callback of the garbage collector, is lost."""
SIGNIFICANT = 6
"""Digits of a decimal that may stand for a value with more."""
MAX_BITS = 256
"""Size of the longest number that is written out."""
PERCENT = frozenset({("Percent", 1)})
ONE, ZERO = Number(Fraction(1)), Number(Fraction(0))


INFINITY = Quantity(Symbol("\\infty"))
MINUS_INFINITY = Quantity(Operation("-", (Number(Fraction(0)), Symbol("\\infty"))))
REALS = Quantity(Symbol("\\mathbbR"))


class Comparison(NamedTuple):
    is_same: bool
    is_computed: bool = True
    """False if it was given up: the answer could take longer than `CPU_S` to read or to compute, or did."""


class TooSlow(BaseException):
    """The time is over. No `Exception`, so that no library catches it."""


def compare(given: str, answer: str) -> Comparison:
    """Compare a hostile answer with the reference; raises `VerifierError` if the reference is empty."""
    wanted = tokens(answer[: MAX_CHARS + 1])
    if not wanted:
        raise VerifierError("the row has no answer to compare with; repair or drop it")
    if given == answer:
        return Comparison(is_same=True)
    if not given or len(given) > MAX_CHARS or len(answer) > MAX_CHARS:
        return Comparison(is_same=False, is_computed=not given)
    found = tokens(given)
    if _bare(found) == _bare(wanted):  # whether they are read or not
        return Comparison(is_same=True)
    try:
        with _at_most(CPU_S):
            return Comparison(same(read(found), read(wanted)))
    except (TooLarge, TooSlow, RecursionError):
        return Comparison(is_same=False, is_computed=False)


def _bare(found: Sequence[Token]) -> list[tuple[str, str]]:
    """Kinds and texts of tokens, without what only sets them."""
    return [(token.kind, token.text) for token in found]


@contextmanager
def _at_most(cpu_s: float) -> Iterator[None]:
    """Raise `TooSlow` after so much CPU time of this process. Only the main thread can; in others there is no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: object) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


# ── answers ───────────────────────────────────────────────────────────────────────────────────


def same(one: Answer, other: Answer) -> bool:
    """True if two answers mean the same. Raises `TooLarge`."""
    if isinstance(one, Labelled) or isinstance(other, Labelled):
        return _same_choices(one, other)
    if isinstance(one, Relation) or isinstance(other, Relation):
        return _same_relations(one, other)
    match _as_kind_of(one, other), _as_kind_of(other, one):
        case Text() as words, Text() as others:
            return words == others
        case Based() as number, Based() as wanted:
            return number == wanted
        case Quantity() as quantity, Quantity() as wanted:
            return _same_quantities(quantity, wanted)
        case Ratio() as ratio, Ratio() as wanted:
            return _same_ratios(ratio, wanted)
        case Members() as group, Members() as wanted:
            return _same_groups(group, wanted)
        case Matrix() as matrix, Matrix() as wanted:
            return _same_matrices(matrix, wanted)
        case SetOperation(name, parts), SetOperation(other_name, wanted):
            return name == other_name and (same_members if name == "cup" else _same_in_order)(parts, wanted)
    return False


def _same_choices(one: Answer, other: Answer) -> bool:
    """Compare two answers of which one at least is a choice with what it says: the other may be either of these."""
    if isinstance(one, Labelled) and isinstance(other, Labelled):
        return one.label == other.label and same(one.answer, other.answer)
    choice, answer = (one, other) if isinstance(one, Labelled) else (other, one)
    if not isinstance(choice, Labelled):
        return False
    return same(choice.answer, answer) or same(Quantity(Symbol(choice.label)), answer)


def _as_kind_of(answer: Answer, other: Answer) -> Answer:
    """An answer as what it is compared with, if it can be that: a ratio as a fraction, a value as a list of one."""
    match answer, other:
        case Ratio((top, under), ""), Quantity():
            return Quantity(Operation("/", (top, under)))
        case Quantity(Number(number), None), Based(_, base) if number.numerator.bit_length() <= MAX_BITS:
            return Based(str(number), base)
        case Quantity(), Members("()") if answer == REALS:
            return Members("()", (MINUS_INFINITY, INFINITY))
        case SetOperation("setminus", (sets, Members("{}", (point,)))), SetOperation("cup") if sets == REALS:
            return SetOperation("cup", (Members("()", (MINUS_INFINITY, point)), Members("()", (point, INFINITY))))
        case SetOperation("cup", parts), Members("", _, "or"):
            return Members("", parts, "or")
        case Text() | Based() | Quantity() | Ratio() | Matrix() | SetOperation(), Members():
            return Members("", (answer,))
    return answer


def same_members(one: Sequence[Answer], other: Sequence[Answer]) -> bool:
    """True if both have the same members, in any order."""
    left = list(other)
    for member in one:
        place = next((place for place, candidate in enumerate(left) if same(member, candidate)), None)
        if place is None:
            return False
        del left[place]
    return not left


def _same_in_order(one: Sequence[Answer], other: Sequence[Answer]) -> bool:
    return len(one) == len(other) and all(map(same, one, other))


def _same_groups(one: Members, other: Members) -> bool:
    is_joined_otherwise = {one.joined, other.joined} == {"and", "or"} and any(map(interval, one.members))
    if len(one.members) != len(other.members) or is_joined_otherwise:
        return False
    kinds = {one.kind, other.kind}
    if (len(kinds) == 1 and kinds <= {"", "{}"}) or kinds == {"", "{}"}:
        return same_members(one.members, other.members)
    if kinds == {"", "()"}:
        return _same_in_order(_by_name(one), _by_name(other))
    return len(kinds) == 1 and _same_in_order(one.members, other.members)


def _by_name(group: Members) -> Sequence[Answer]:
    """Members of a list; those of ``y = 2, x = 1`` in the order of their names."""
    names = [member.name for member in group.members if isinstance(member, Relation) and member.signs == ("=",)]
    if len(set(names)) != len(group.members) or not all(names):
        return group.members
    return [member for _, member in sorted(zip(names, group.members, strict=True), key=lambda pair: pair[0])]


def _same_ratios(one: Ratio, other: Ratio) -> bool:
    if {one.half, other.half} == {"a.m.", "p.m."} or len(one.parts) != len(other.parts):
        return False
    if (one.is_time and other.is_time and len(one.parts) == 2) or one.half or other.half:
        return all(map(_equal, one.parts, other.parts))
    pairs = list(zip(one.parts, other.parts, strict=True))
    are_zero_alike = all(_equal(part, ZERO) == _equal(wanted, ZERO) for part, wanted in pairs)
    return are_zero_alike and all(
        _equal(Operation("*", (part, last_wanted)), Operation("*", (wanted, last)))
        for (part, wanted), (last, last_wanted) in combinations(pairs, 2)
    )


def _same_matrices(one: Matrix, other: Matrix) -> bool:
    shapes = [[len(row) for row in matrix.rows] for matrix in (one, other)]
    cells = ([_times(cell, matrix.factor) for row in matrix.rows for cell in row] for matrix in (one, other))
    return shapes[0] == shapes[1] and all(map(same, *cells))


def _times(cell: Answer, factor: Expression) -> Answer:
    if factor == ONE or not isinstance(cell, Quantity):
        return cell
    return Quantity(Operation("*", (cell.value, factor)), cell.unit)


# ── relations ─────────────────────────────────────────────────────────────────────────────────


class Interval(NamedTuple):
    low: Answer
    high: Answer
    sides: str
    """``[]``, ``[)``, ``(]`` or ``()``."""
    name: str = ""
    """Letter that lies in it, if one is written."""


def _same_relations(one: Answer, other: Answer) -> bool:
    """Compare two answers of which one at least is a relation."""
    if isinstance(one, Relation) and isinstance(other, Relation) and set(one.signs) == set(other.signs) == {"="}:
        return _same_equations(one, other)
    mine, wanted = interval(one), interval(other)
    if mine and wanted:
        return _same_intervals(mine, wanted)
    if isinstance(one, Relation) and isinstance(other, Relation):
        return one == other or (len(one.sides) == len(other.sides) == 2 and _proportional(one, other))
    relation, answer = (one, other) if isinstance(one, Relation) else (other, one)
    if not isinstance(relation, Relation) or not set(relation.signs) <= {"=", "in"}:
        return False
    return all(same(side, answer) for side in (relation.sides if _is_choice(answer) else _said(relation)))


def _is_choice(answer: Answer) -> bool:
    """True for words and for a capital letter: ``C = B`` names no answer B."""
    return isinstance(answer, Text) or (
        isinstance(answer, Quantity) and isinstance(answer.value, Symbol) and answer.value.name.isupper()
    )


def _same_equations(one: Relation, other: Relation) -> bool:
    """Compare two chains of equalities: two equations up to a factor, or all that is said of one name."""
    if len(one.sides) == len(other.sides) == 2 and _proportional(one, other):
        return True
    is_named_alike = not one.name or not other.name or one.name == other.name
    return is_named_alike and all(same(side, wanted) for side in _said(one) for wanted in _said(other))


def _said(relation: Relation) -> Sequence[Answer]:
    """Sides of a chain of equalities, without the name of what they all are."""
    return relation.sides[relation.num_names :]


def _proportional(one: Relation, other: Relation) -> bool:
    """True if two equations or inequalities are the same up to a factor, which is positive for inequalities."""
    differences = [_difference(relation) for relation in (one, other)]
    if differences[0] is None or differences[1] is None or not value.letters(differences[0]):
        return one == other
    (sign, wanted), turned = (one.signs[0], other.signs[0]), TURNED.get(other.signs[0], other.signs[0])
    try:
        found = value.sign_of_ratio(differences[0], differences[1])
    except Unreadable:
        return False
    return found is not None and sign == (wanted if found > 0 else turned)


def _difference(relation: Relation) -> Expression | None:
    """Left side minus the right one."""
    left, right = relation.sides
    if not (isinstance(left, Quantity) and isinstance(right, Quantity)) or left.unit != right.unit:
        return None
    return Operation("-", (left.value, right.value))


def interval(answer: Answer) -> Interval | None:
    """Read ``[1, 3)``, ``1 \\le x < 3``, ``3x > 6`` as an interval; None for any other answer."""
    match answer:
        case Members("[]" | "[)" | "(]" | "()" as sides, (low, high)):
            return Interval(low, high, sides)
        case Relation(("in" | "=" as sign,), (_, within), name) if name and (found := interval(within)):
            return found._replace(name=name if sign == "in" else "")
        case Relation((first, second), (low, Quantity(Symbol(name)), high)) if first[0] == second[0] in "<>":
            if first[0] == ">":
                low, first, second, high = high, second, first, low
            return Interval(low, high, f"{'[' if '=' in first else '('}{']' if '=' in second else ')'}", name)
        case Relation((sign,), (_, _)) if sign in TURNED:
            return _half_line(answer)
    return None


def _half_line(relation: Relation) -> Interval | None:
    """All values on one side of a bound: ``3x > 6``, ``x > \\sqrt{2}``."""
    match relation.sides, relation.signs[0]:
        case (Quantity(Symbol(name), None), bound), sign if name not in value.CONSTANTS:
            return _beyond(bound, sign, name)
        case (bound, Quantity(Symbol(name), None)), sign if name not in value.CONSTANTS:
            return _beyond(bound, TURNED[sign], name)
    difference = _difference(relation)
    if difference is None or len(names := value.letters(difference)) != 1:
        return None
    name = names.pop()
    line = value.linear(difference, name)
    if line is None or not line[0]:
        return None
    sign = relation.signs[0] if line[0] > 0 else TURNED[relation.signs[0]]
    return _beyond(Quantity(Number(-line[1] / line[0])), sign, name)


def _beyond(bound: Answer, sign: str, name: str) -> Interval:
    if sign[0] == "<":
        return Interval(MINUS_INFINITY, bound, "(]" if "=" in sign else "()", name)
    return Interval(bound, INFINITY, "[)" if "=" in sign else "()", name)


def _same_intervals(one: Interval, other: Interval) -> bool:
    is_named_alike = not one.name or not other.name or one.name == other.name
    return is_named_alike and one.sides == other.sides and same(one.low, other.low) and same(one.high, other.high)


# ── quantities ────────────────────────────────────────────────────────────────────────────────


def _same_quantities(one: Quantity, other: Quantity) -> bool:
    mine, wanted = (
        [(each.value, each.unit), *([(each.product, None)] if each.product else [])] for each in (one, other)
    )
    return any(_same_measured(*reading, *meant) for reading in mine for meant in wanted)


def _same_measured(given: Expression, unit: Measure | None, answer: Expression, wanted: Measure | None) -> bool:
    percents = [each is not None and each.dimensions == PERCENT for each in (unit, wanted)]
    if percents == [True, False] and wanted is None and _equal(_over_100(given), answer):
        return True
    if percents == [False, True] and unit is None and _equal(given, _over_100(answer)):
        return True
    factor = conversion(unit, wanted)
    if factor is None:
        return False
    if factor != ONE:
        return _equal(Operation("*", (given, factor)), answer)
    return _equal(given, answer) or _is_rounded(given, answer) or _is_rounded(answer, given)


def _over_100(percent: Expression) -> Expression:
    return Operation("/", (percent, Number(Fraction(100))))


def _equal(one: Expression, other: Expression) -> bool:
    try:
        return value.equal(one, other)
    except Unreadable:
        return False


def _is_rounded(rounded: Expression, full: Expression) -> bool:
    """True for a decimal of six digits or more to which ``full``, which no decimal is equal to, is rounded."""
    decimal = _decimal(rounded)
    if decimal is None or decimal.digits < SIGNIFICANT or _decimal(full) is not None or value.letters(full):
        return False
    try:
        under = value.exact(full, {}).denominator
        while any(under % prime == 0 for prime in (2, 5)):
            under //= 2 if under % 2 == 0 else 5
        is_endless = under > 1
    except Inexact:
        is_endless = True
    except Unreadable:
        return False
    return is_endless and value.within(full, decimal.value, decimal.step / 2)


def _decimal(expression: Expression) -> Number | None:
    """A decimal that is written out, also with a power of ten."""
    match expression:
        case Number(_, digits) if digits:
            return expression
        case Operation("*", (Number(number, digits, step), Operation("^", (base, Number(power, 0))))) if digits:
            if base == Number(Fraction(10)) and abs(power) < MAX_CHARS and power.denominator == 1:
                scale = Fraction(10) ** int(power)
                return Number(number * scale, digits, step * scale)
    return None


# ── votes ─────────────────────────────────────────────────────────────────────────────────────


def canonical(answer: str) -> str:
    """One text for all writings of a number or of a list of them, for a vote; of anything else its tokens."""
    if len(answer) > MAX_CHARS:
        return " ".join(answer.split())
    found = tokens(answer)
    text = " ".join(token.text for token in found)
    try:
        with _at_most(CPU_S):
            return _voted(read(found)) or text
    except (TooLarge, TooSlow, RecursionError):
        return text


def _voted(answer: Answer) -> str:
    match answer:
        case Text(words):
            return " ".join(words)
        case Quantity(expression):
            return _written(expression)
        case Relation() if set(answer.signs) == {"="} and len(said := set(map(_voted, _said(answer)))) == 1:
            return said.pop()
        case Members(kind, members) if all(voted := [_voted(member) for member in members]):
            brackets = kind or "{}"
            return f"{brackets[0]}{', '.join(sorted(voted) if brackets == '{}' else voted)}{brackets[1]}"
    return ""


def _written(expression: Expression) -> str:
    """A fraction, twenty digits of another number, or what has letters as it is read; empty for what has no value."""
    if value.letters(expression):
        return _tree(expression)
    try:
        return value.written(expression, max_bits=MAX_BITS, digits=20)
    except Unreadable:
        return ""


def _tree(expression: Expression) -> str:
    match expression:
        case Number(number) if max(number.numerator.bit_length(), number.denominator.bit_length()) > MAX_BITS:
            raise TooLarge
        case Number(number):
            return str(number)
        case Symbol(name):
            return name
        case Operation(name, parts):
            return f"{name}({', '.join(map(_tree, parts))})"
