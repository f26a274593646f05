r"""
An answer as a tree: lists, sets, points, intervals, matrices, relations, ratios and quantities, or plain words.

    3 \text{ or } -3     Members("", (3, -3))               x \ge 2          Relation((">=",), (x, 2))
    P = (1, 2)           Relation(("=",), (P, (1, 2)))      5\text{ cm}^2    Quantity(5, cm^2)
    \pm 3                Members("", (3, -3))               A \cup B         SetOperation("cup", (A, B))
    no solution          Text(("no", "solution"))           3:4:5            Ratio((3, 4, 5))

Every token is in the tree; a part that is not read is `Text`, equal only to the same tokens.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from fractions import Fraction
from itertools import accumulate, pairwise, takewhile

from msgspec import Struct

from asyncrl.reward.answers.expression import MAX_DEPTH, is_product, number_of, read_expression
from asyncrl.reward.answers.notation import CLOSING, MONEY, OPENING, Token, nesting
from asyncrl.reward.answers.units import (
    ARTICLES,
    NO_UNITS,
    SHORT,
    SINGLE,
    TEMPERATURES,
    Measure,
    is_unit_word,
    known,
    singular,
    unit_of,
)
from asyncrl.reward.answers.value import Expression, Number, Operation, TooLarge, Unreadable, letters

MAX_MEMBERS = 40
RELATIONS = frozenset(("=", "<", ">", "<=", ">=", "!=", "in"))
TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
"""Inequalities, and what each is when its sides are exchanged."""
PREAMBLE = re.compile(
    r"(?:(?:the|so|hence|therefore|final) )*answer (?:is|=|:)(?: :)?(?= )|(?:最终)?(?:答案|答)[是为]?(?: :)?(?= )"
)
"""Words before an answer."""
JOINERS = {"and": "and", "or": "or", "或": "or", **dict.fromkeys("和且与及", "and")}
OF_UNITS = frozenset(("frac", "\\mu", "\\Omega", "¢", "/", "^", "{", "}", "%", "°", "*", ".", "-", *MONEY.values()))
CHOICES = frozenset("ABCDEFGH")
CODES = frozenset(("USD", "EUR", "GBP", "RMB", "CNY"))
SYSTEMS = frozenset(("aligned", "align", "cases", "gathered", "split"))
MATRICES = frozenset(("pmatrix", "bmatrix", "matrix", "Bmatrix", "array", "smallmatrix"))


class Text(Struct, frozen=True):
    """Words, or notation that is not read further."""

    words: tuple[str, ...]


class Quantity(Struct, frozen=True):
    """A value and what it measures."""

    value: Expression
    unit: Measure | None = None
    product: Expression | None = None
    """The value if the unit may be variables: ``5 m``, ``6mm``."""


class Based(Struct, frozen=True):
    """Digits of a number in a base."""

    digits: str
    base: int


class Ratio(Struct, frozen=True):
    """``3:4:5``, or a time of day."""

    parts: tuple[Expression, ...]
    half: str = ""
    """``a.m.`` or ``p.m.``."""
    is_time: bool = False
    """True if it could be a time: an hour below 24, and two digits of minutes."""


class Members(Struct, frozen=True):
    """Members in a pair of brackets, or in none."""

    kind: str
    """``()``, ``[)`` ..., ``{}`` for a set; empty for a list without brackets."""
    members: tuple["Answer", ...]
    joined: str = ""
    """Word between the members of a list, ``and`` or ``or``, if there is one."""


class Matrix(Struct, frozen=True):
    """Cells by rows, each times a factor."""

    rows: tuple[tuple["Answer", ...], ...]
    factor: Expression = Number(Fraction(1))


class SetOperation(Struct, frozen=True):
    """``cup``, ``cap`` or ``setminus`` of sets."""

    name: str
    parts: tuple["Answer", ...]


class Relation(Struct, frozen=True):
    """A chain of sides with a sign between each two."""

    signs: tuple[str, ...]
    sides: tuple["Answer", ...]
    name: str
    """Names on the left, such as ``x = y`` of ``x = y = 5``; may be empty."""
    num_names: int = 0


class Labelled(Struct, frozen=True):
    """A choice with what it says: ``(C) 12``."""

    label: str
    answer: "Answer"


Answer = Text | Quantity | Based | Ratio | Members | Matrix | SetOperation | Relation | Labelled


def read(found: list[Token]) -> Answer:
    """Read the tokens of an answer; raises `TooLarge` if it would take too long."""
    if max(accumulate(map(nesting, found)), default=0) > MAX_DEPTH:
        raise TooLarge
    return _list(_bare(found))


# ── tokens ────────────────────────────────────────────────────────────────────────────────────


def _bare(found: list[Token]) -> list[Token]:
    """Tokens without the words before an answer, and without its full stop."""
    dots = len(found) - next((place for place in range(len(found), 0, -1) if found[place - 1].text != "."), 0)
    if dots < 3:  # 0.333... goes on
        found = found[: len(found) - dots]
    words = " ".join(token.text.lower() for token in found[:6])
    if said := PREAMBLE.match(words):
        found = found[len(said[0].split()) :]
    return found[1:] if found and found[0].text == "=" else found


def _split(found: Sequence[Token], is_between: Callable[[Token], bool]) -> tuple[list[list[Token]], list[Token]]:
    """Parts between the tokens that are so and in no bracket, and those tokens."""
    parts: list[list[Token]] = [[]]
    between: list[Token] = []
    depth = 0
    for token in found:
        depth += nesting(token)
        if depth == 0 and is_between(token):
            parts.append([])
            between.append(token)
        else:
            parts[-1].append(token)
    return parts, between


def _is_sign(*texts: str) -> Callable[[Token], bool]:
    return lambda token: token.kind == "sign" and token.text in texts


def _joins(token: Token) -> bool:
    return (token.kind == "sign" and token.text in (",", ";")) or (
        token.kind == "run" and token.text.lower() in JOINERS
    )


def _in_brackets(found: Sequence[Token]) -> bool:
    """True if the first bracket is closed by the last one."""
    if len(found) < 2 or found[0].kind != "sign" or found[0].text not in OPENING:
        return False
    depths = list(accumulate(map(nesting, found)))
    return 0 in depths and depths.index(0) == len(found) - 1


def _word(token: Token) -> str:
    """Text of a token, of words without case and plural; a letter and a sequence of capitals have no plural."""
    if token.kind != "run" or len(token.text) == 1:
        return token.text
    return token.text.lower() if token.text.isupper() else singular(token.text)


def _text(found: Sequence[Token]) -> Text:
    """Words without case, articles before them and brackets round a single one."""
    if len(found) == 3 and found[0].text == "(" and found[2].text == ")":
        found = found[1:2]
    words = [_word(token) for token in found]
    return Text(tuple(words[1:] if len(words) > 1 and words[0] in ARTICLES else words))


# ── lists ─────────────────────────────────────────────────────────────────────────────────────


def _list(found: Sequence[Token]) -> Answer:
    """A list without brackets, or its only member."""
    parts, between = _split(found, _joins)
    words = {JOINERS[token.text.lower()] for token in between if token.kind == "run"}
    for place in range(len(between) - 1, 0, -1):
        is_comma = between[place].kind == "run" and between[place - 1].text == ","
        if is_comma and not parts[place]:  # 1, 2, and 3
            del parts[place]
    if not all(parts) or len(parts) > MAX_MEMBERS or len(words) > 1:
        return _text(found)
    members = [member for part in parts for member in _expanded(part)]
    return members[0] if len(members) == 1 else Members("", tuple(members), next(iter(words), ""))


def _expanded(found: Sequence[Token]) -> list[Answer]:
    r"""A member, or both that ``\pm`` makes of it."""
    is_set = _in_brackets(found) and found[0].text == r"\{"
    if is_set or not any(_is_sign("pm", "mp")(token) for token in found):
        return [_member(found)]
    signs = {"pm": "+-", "mp": "-+"}
    return [
        _member(
            [token._replace(text=signs[token.text][which]) if _is_sign("pm", "mp")(token) else token for token in found]
        )
        for which in (0, 1)
    ]


def _member(found: Sequence[Token]) -> Answer:
    if not found:
        return Text(())
    if len(found) == 1 and found[0].kind == "number":
        return Quantity(number_of(found[0].text))
    for read_as in (_labelled, _relation, _sets, _group, _system, _matrix, _ratio, _based, _quantity, _sum):
        try:
            answer = read_as(found)
        except Unreadable:
            answer = None
        if answer is not None:
            return answer
    return _text(found)


def _labelled(found: Sequence[Token]) -> Answer | None:
    texts = [token.text for token in found[:3]]
    start = 3 if texts[::2] == ["(", ")"] else 2 if texts[1:2] == ["."] else len(found)
    label, rest = found[1 if start == 3 else 0], found[start:]
    if not rest or label.kind != "run" or label.text not in CHOICES or not (rest[0].has_gap or label.is_roman):
        return None
    answer = _member(rest)
    is_choice = isinstance(answer, Labelled) or (len(rest) < 4 and any(token.text in CHOICES for token in rest))
    return None if is_choice else Labelled(label.text, answer)


# ── relations and sets ────────────────────────────────────────────────────────────────────────


def _relation(found: Sequence[Token]) -> Answer | None:
    sides, signs = _split(found, _is_sign(*RELATIONS))
    if not signs or not all(sides):
        return None
    texts = [token.text for token in signs]
    if set(texts) == {"="} and is_name(sides[-1]) and not is_name(sides[0]):
        sides.reverse()
    names = list(takewhile(is_name, sides[:-1] if set(texts) == {"="} else sides[:1]))
    name = " = ".join(" ".join(token.text for token in side) for side in names)
    return Relation(tuple(texts), tuple(map(_member, sides)), name, len(names))


def is_name(found: Sequence[Token]) -> bool:
    r"""True for what only names a value: ``x``, ``f(3)``, ``\angle ABC``, ``\text{Area}``, ``(x, y)``."""
    if any(token.text.lower() in NO_UNITS for token in found):
        return False  # not = 5
    if _in_brackets(found) and found[0].text in ("(", "|"):
        inner = [token.text for token in found[1:-1] if token.text != ","]
        are_names = all(token.kind in ("run", "symbol") or token.text == "," for token in found[1:-1])
        return are_names and inner == sorted(inner)
    if not found or found[0].text in OPENING:
        return False
    if [token.text for token in found[1:6]] == ["^", "{", "-", "1", "}"]:  # f^{-1}(x)
        found = [found[0], *found[6:]]
    if len(found) > 2 and {token.text for token in found[1::2]} in ({"+"}, {":"}):  # m + n, AB : BC
        return len(found) % 2 == 1 and all(token.kind in ("run", "symbol") for token in found[::2])
    depth = 0
    before = ""
    for place, token in enumerate(found):
        is_bar = token.text == "|" and place in (0, len(found) - 1)
        is_part = token.kind in ("run", "symbol") or token.text in ("_", "'", "°", "angle", "triangle") or is_bar
        if token.text in ("(", "{"):
            is_part = depth > 0 or before == "_" or (token.text == "(" and place == 1 and found[0].text not in "xyz")
        depth += nesting(token)
        if not (is_part or depth > 0 or token.text in CLOSING or before == "_"):
            return False
        before = token.text
    return True


def _sets(found: Sequence[Token]) -> Answer | None:
    for name in ("cup", "setminus", "cap"):
        parts, between = _split(found, _is_sign(name))
        if between and all(parts) and len(parts) <= MAX_MEMBERS:
            return SetOperation(name, tuple(map(_member, parts)))
    return None


EMPTY = Members("{}", ())


def _group(found: Sequence[Token]) -> Answer | None:
    """Brackets with members, or what is in a single pair of parentheses."""
    if [token.text for token in found] == ["emptyset"]:
        return EMPTY
    if not _in_brackets(found):
        return None
    opening, closing, inner = found[0].text, found[-1].text, found[1:-1]
    if opening == r"\{" and closing == r"\}":
        return _set(inner)
    parts, _ = _split(inner, _is_sign(",", ";"))
    if opening in ("(", "[") and closing in (")", "]") and len(parts) > 1:
        if not all(parts) or len(parts) > MAX_MEMBERS:
            return None
        return Members(f"{opening}{closing}", tuple(map(_member, parts)))
    if f"{opening}{closing}" not in ("()", "{}") or (opening == "(" and any(token.kind != "run" for token in inner)):
        return None
    answer = _list(inner)
    return None if isinstance(answer, Text) and opening == "{" else answer


def _set(inner: Sequence[Token]) -> Answer | None:
    if not inner:
        return EMPTY
    (name, *rule), _ = _split(inner, _is_sign("|", ":"))
    if name and len(rule) == 1:
        of, belongs = _split(name, _is_sign("in"))
        is_said = name[0].text in [token.text for token in rule[0]]
        if is_said and is_name(of[0]) and (not belongs or [token.text for token in of[1]] == [r"\mathbbR"]):
            return _member(rule[0])
    parts, _ = _split(inner, _is_sign(",", ";"))
    if not all(parts) or len(parts) > MAX_MEMBERS:
        return None
    return Members("{}", tuple(member for part in parts for member in _expanded(part)))


def _system(found: Sequence[Token]) -> Answer | None:
    """Equations one below the other, as a list."""
    rest = found[1:] if found[0].text == r"\{" and found[-1].kind == "end" else found
    is_system = rest[0].text in SYSTEMS or (rest[0].text == "array" and rest is not found)
    if rest[0].kind != "begin" or rest[-1].kind != "end" or not is_system:
        return None
    rows, _ = _split(rest[1:-1], _is_sign(r"\\", ","))
    members = [_member([token for token in row if token.text != "&"]) for row in rows if row]
    return members[0] if len(members) == 1 else Members("", tuple(members), "and")


def _matrix(found: Sequence[Token]) -> Answer | None:
    if _in_brackets(found) and found[0].text in ("(", "[") and found[1].text in ("array", "matrix"):
        found = found[1:-1]
    start = next((place for place, token in enumerate(found) if token.kind == "begin"), len(found) - 1)
    first, last = found[start], found[-1]
    if first.text not in MATRICES or last.kind != "end" or first.text != last.text:
        return None
    rows, _ = _split(found[start + 1 : -1], _is_sign(r"\\"))
    cells = [_split(row, _is_sign("&"))[0] for row in (rows if rows[-1] else rows[:-1])]
    is_full = cells and all(len(row) == len(cells[0]) and all(row) for row in cells)
    if not is_full or len(cells) * len(cells[0]) > MAX_MEMBERS:
        return None
    before = list(found[:start])
    if before == [] or [token.text for token in before] == ["-"]:
        before.append(Token("number", "1"))
    factor, _ = read_expression(before)
    return Matrix(tuple(tuple(map(_member, row)) for row in cells), factor)


# ── numbers ───────────────────────────────────────────────────────────────────────────────────


def _ratio(found: Sequence[Token]) -> Answer | None:
    half = found[-1].text if _is_sign("a.m.", "p.m.")(found[-1]) else ""
    parts, between = _split(found[:-1] if half else found, _is_sign(":"))
    if half and not between and len(parts[0]) == 1 and parts[0][0].kind == "number":
        parts.append([Token("number", "00")])
    elif not between or not all(parts):
        return None
    texts = [part[0].text if len(part) == 1 and part[0].kind == "number" else "" for part in parts]
    is_time = (
        all(text.isdecimal() for text in texts)
        and int(texts[0]) < 24
        and all(len(text) == 2 and int(text) < 60 for text in texts[1:])
    )
    if half and not is_time:
        return None
    return Ratio(tuple(read_expression(part)[0] for part in parts), half, is_time)


def _based(found: Sequence[Token]) -> Answer | None:
    if len(found) != 1 or found[0].kind != "based":
        return None
    digits, _, base = found[0].text.partition("_")
    number = int(base) if base.isdecimal() else NUMERALS.get(base, 0)
    return Based(digits.lstrip("0") or "0", number) if all(int(digit, 16) < number for digit in digits) else None


NUMERALS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
NUMERALS |= {"binary": 2, "octal": 8, "decimal": 10, "twelve": 12, "sixteen": 16}


def _quantity(found: Sequence[Token]) -> Quantity:
    """Read a value and its unit; raises `Unreadable` for anything else."""
    if not found:
        raise Unreadable("nothing")
    if (money := _money(found)) is not None:
        return money
    for place in range(_unit_start(found), len(found)):
        try:
            measured = unit_of(found[place:])
            if measured and (quantity := _measured(found, place, *measured)):
                return quantity
        except Unreadable:
            continue
    value, has_degrees = read_expression(found, degrees_allowed=True)
    return Quantity(value, DEGREE if has_degrees else None)


def _sum(found: Sequence[Token]) -> Answer | None:
    """Read ``2 hours 30 minutes`` and ``5 ft 6 in``: a sum, in the last of its units."""
    starts = [
        place for place in range(1, len(found)) if found[place].kind == "number" and found[place - 1].kind == "run"
    ]
    parts = [_quantity(found[start:end]) for start, end in pairwise((0, *starts, len(found)))]
    units = [part.unit or Measure() for part in parts]
    is_falling = all(one.scale > other.scale and one.dimensions == other.dimensions for one, other in pairwise(units))
    if len(parts) < 2 or not is_falling or len(units[0].dimensions) != 1:
        return None
    value = parts[-1].value
    for part, unit in zip(parts[:-1], units[:-1], strict=True):
        value = Operation("+", (value, Operation("*", (part.value, Number(unit.scale / units[-1].scale)))))
    return Quantity(value, units[-1])


DEGREE = (unit_of([Token("sign", "°")]) or (Measure(), 1))[0]


def _money(found: Sequence[Token]) -> Quantity | None:
    """``-\\$5``, ``€1.5 million``, ``US\\$5``, ``USD 5``."""
    sign = list(found[: found[0].text == "-"])
    rest = found[len(sign) :]
    if [token.text for token in rest[:2]] == ["US", "dollar"]:
        rest = rest[1:]
    name, *amount = rest or found
    if not amount or name.is_roman or not (name.text in CODES or (name.kind == "sign" and name.text in MONEY.values())):
        return None
    inner = _quantity([*sign, *amount])
    currency, rate = unit_of([Token("run", name.text)]), inner.unit or Measure()
    if currency is None or any(power > 0 for _, power in rate.dimensions):
        return None
    return Quantity(inner.value, Measure(currency[0].dimensions | rate.dimensions, currency[0].scale * rate.scale))


def _unit_start(found: Sequence[Token]) -> int:
    """First place from which on all tokens may be a unit."""
    place = len(found)
    while place > 1:
        token = found[place - 1]
        is_part = token.kind == "run" or token.text in OF_UNITS
        if not is_part and not (token.kind == "number" and place > 2 and found[place - 2].text in ("^", "{", "-")):
            break
        place -= 1
    return place


def _measured(found: Sequence[Token], place: int, unit: Measure, factor: int) -> Quantity | None:
    """The tokens before ``place`` as a value of this unit, unless these letters are rather variables."""
    first, *rest = written = found[place:]
    is_bare = first.text == "°" and not (rest and rest[0].text.lower() in TEMPERATURES)
    if is_bare or first.text in ("*", "{", "^", "-", ".") or sum(map(nesting, written)) != 0:
        return None
    value, _ = read_expression(found[:place])
    words = [token for token in written if token.kind == "run" and first.text != "°"]
    if any(len(token.text) == 1 and token.text.isascii() and not known(token.text) for token in words):
        return None
    bare = [token for token in words if not token.is_roman and token.text.isascii() and token.text not in ARTICLES]
    if not all(_is_unit(token, value, is_first=token is first) for token in bare):
        return None
    singles = [token for token in bare if len(token.text) == 1]
    if len(singles) > 1 and "/" not in [token.text for token in written]:  # m g h
        return None
    product = None
    if bare and len(bare) == len(words) and all(is_product(token.text, is_alone=False) for token in bare):
        with suppress(Unreadable):
            product, _ = read_expression(found)
    if factor != 1:
        value = Operation("*", (value, Number(Fraction(factor))))
    return Quantity(value, unit if unit.dimensions else None, product)


def _is_unit(token: Token, value: Expression, *, is_first: bool) -> bool:
    """True for letters after a value that are a unit or a word rather than variables."""
    if not is_unit_word(token.text) and token.text.lower() != "per":
        return not is_product(token.text, is_alone=False)
    if len(token.text) < 3 and token.text not in SHORT and not _is_plain(value):
        return False  # \pi hr^2
    if letters(value) and not token.has_gap:
        return False
    return len(token.text) > 1 or (token.text in SINGLE and (token.has_gap or not is_first))


def _is_plain(value: Expression) -> bool:
    """True for a number that is written in digits alone."""
    match value:
        case Number():
            return True
        case Operation("+" | "-" | "*" | "/" | "^", parts):
            return all(map(_is_plain, parts))
    return False
