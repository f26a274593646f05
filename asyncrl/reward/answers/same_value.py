"""
Equality of two answers in LaTeX: ``\\frac{1}{2}`` and ``0.5``, ``(x+1)^2`` and ``x^2 + 2x + 1``.

    typeset      one notation; Chinese and typographic signs, math delimiters, the words before an answer
    links        x = 1/2 = 0.5: each link must be the answer, or it is a list of guesses
    members      lists, tuples, sets, intervals, unions: part by part, brackets count
    quantity     units, currencies, percent, degrees, bases: two that are written must agree
    words        a choice, a name, a sequence of letters: text
    numbers      exact; a decimal is what it is rounded from, if it has six digits
    expressions  parsed by math-verify's parser, compared by their values

Hostile text is expected: everything is linear or bounded, and what would take long to compute is no answer. Of
math-verify only the parser is used: its comparison adds numbers that stand side by side, drops words, bases and
brackets, and has no bound in time.
"""

import logging
import re
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import NamedTuple

from math_verify import LatexExtractionConfig, parse
from msgspec import Struct

from asyncrl.errors import VerifierError
from asyncrl.reward.answers import expression
from asyncrl.reward.answers.expression import (
    GROUPED,
    MAX_CHARS,
    SIGNIFICANT,
    Number,
    Unreadable,
    is_rounded,
    read_number,
    same_members,
)
from asyncrl.reward.answers.final_answer import NAME, typeset, without_name
from asyncrl.reward.answers.quantity import Quantity, conversion, quantity

MAX_DEPTH = 9
"""Deepest nesting of braces and brackets: the parser's time grows quickly with it."""
MAX_MEMBERS = 40
CPU_S = 0.8
"""CPU time in which an answer must be read and compared; what takes longer is a wrong one."""
AGAIN_S = 0.05
"""CPU time until the next `TooSlow`: one in a finalizer, or in a callback of the garbage collector, is lost."""
TRAPS = re.compile(
    r"[0-9]{100}|[0-9]{4}[\s)}]{0,8}!|[)}!]\s?!|(?:binom|Gamma)[\s{(]{0,8}[0-9]{5}|(?:[|][^|]*){7}|_\s?\{[^{}]{0,40}_|\^[^+\-=,;]{0,40}\^|"
    r"\\(?:sum|prod|int|iint|oint|lim|limsup|liminf|bigcup|bigcap)(?![a-zA-Z])"
)
"""
Text that is no final answer and could take long: a hundred digits in a row, the factorial of four digits or of another,
a binomial coefficient of five digits, towers of exponents, indices of indices, seven bars, sums, products, integrals,
limits.
"""

LATEX = [LatexExtractionConfig(boxed_match_priority=-1)]
"""LaTeX only: the library evaluates plain expressions with Python's ``eval``."""

logging.getLogger("math_verify").addHandler(logging.NullHandler())  # it warns that the time limits are off

BESIDE = re.compile(r"(?<![_^0-9.{])[0-9.]+\s+[0-9.]")
"""Two numbers side by side, which are neither a sum nor a product."""
PAIRS = {"(": ")]", "[": ")]", "\\{": "\\}", "{": ""}
AND = re.compile(
    r"\s*(?:\\(?:text|mathrm|mbox|textrm)\s?\{\s*,?\s*(?:and|or)\s*\}|(?<![A-Za-z\\]),?\s(?:and|or)\s(?![A-Za-z]))\s*|;\s?"
)

FONT = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|textnormal|mathrm|mathbf|mathsf|mbox|operatorname)\s?\{([^{}]*)\}"
)
LETTERS = re.compile(r"[^\W\d_][^\W\d_'. -]*(?:[-' .,]+[^\W\d_]+)*\.?")
ENVIRONMENT = re.compile(r"\\(?:begin|end)\s?\{[a-z*]{1,12}\}")
RUN = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
FUNCTIONS = frozenset(
    (
        *("sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh"),
        *("log", "exp", "max", "min", "gcd", "lcm", "mod", "det", "sqrt"),
    )
)
"""Words that are algebra."""
SHORT_WORDS = frozenset(
    (
        *("no", "on", "or", "as", "at", "is", "it", "us", "we", "he", "me", "my", "am", "an", "in", "of", "so", "to"),
        *("do", "go", "up", "by", "be", "hi", "ok"),
    )
)
"""Words of two letters, which are otherwise a product."""
VARIABLES = (frozenset("abc"), frozenset("xyz"), frozenset("uvw"), frozenset("mnp"), frozenset("pqr"), frozenset("rst"))

LESS = re.compile(r"\s?(\\le(?![a-zA-Z])|<)\s?")
MORE = re.compile(r"\s?(\\ge(?![a-zA-Z])|>)\s?")
MEMBER = re.compile(r"[A-Za-z]\s?\\in\s?(?=[\[({\\])")
INFINITE = re.compile(r"[-+]?\s?\\infty\s?")


class Comparison(NamedTuple):
    is_same: bool
    is_computed: bool = True
    """False if it was given up: the answer could take longer than `CPU_S` to read or to compute, or did."""


class TooSlow(BaseException):
    """The time is over. No `Exception`, so that no library catches it."""


def compare(given: str, answer: str) -> Comparison:
    """Compare a hostile answer with the reference; raises `VerifierError` if the reference is empty."""
    given, answer = typeset(given), typeset(answer)
    if not answer:
        raise VerifierError("the row has no answer to compare with; repair or drop it")
    if given == answer:
        return Comparison(is_same=True)
    if not given or is_trap(given):
        return Comparison(is_same=False, is_computed=not given)
    try:
        with _at_most(CPU_S):
            return Comparison(_same(given, answer))
    except TooSlow:
        return Comparison(is_same=False, is_computed=False)


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


def canonical(answer: str) -> str:
    """One text for all writings of a number, for a vote; of anything else its text without spaces."""
    text = typeset(answer)
    if len(text) > MAX_CHARS:
        return text
    read = quantity(without_name(text))
    number = read_number(read.value)
    return str(number.value * read.factor) if number else "".join(without_name(text).split())


def is_trap(text: str) -> bool:
    """True for text that could take long to parse or to compute."""
    return len(text) > MAX_CHARS or _depth(text) > MAX_DEPTH or TRAPS.search(text) is not None


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "{([") - (character in "})]")
        deepest = max(deepest, depth)
    return deepest


# ── parts ───────────────────────────────────────────────────────────────────────────────────


def _same(given: str, answer: str) -> bool:
    """Compare two answers that may have parts."""
    given, answer = MEMBER.sub("", given), MEMBER.sub("", answer)
    if any(MORE.search(text) or LESS.search(text) for text in (given, answer)):
        one, other = _interval(given), _interval(answer)
        if one and other:
            return one.sides == other.sides and _same_end(one.low, other.low) and _same_end(one.high, other.high)
    mine, reference = _members(given), _members(answer)
    if len(mine.parts) > 1 or len(reference.parts) > 1:
        return _same_members(mine, reference)
    if mine.kind == "()" or reference.kind == "()":
        inner, wanted = (
            one.parts[0] if one.kind == "()" else text for one, text in ((mine, given), (reference, answer))
        )
        return _same(inner, wanted)
    if "\\cup" in given and "\\cup" in answer:
        unions = [[part.strip() for part in text.split("\\cup")][:MAX_MEMBERS] for text in (given, answer)]
        return same_members(unions[0], unions[1], _same)
    return _same_links(given, answer)


class Members(Struct, frozen=True):
    """Parts of a list, and its brackets; a single one without brackets is the answer itself."""

    kind: str
    parts: Sequence[str]


def _members(text: str) -> Members:
    kind, inner = "", text
    for opening, closings in PAIRS.items():
        closing = next((end for end in (closings, *closings) if end and text.endswith(end)), "")
        if text.startswith(opening) and closing and _is_pair(text, opening, closing):
            kind, inner = f"{opening[-1]}{closing[-1]}", text[len(opening) : len(text) - len(closing)].strip()
            break
    if not kind:
        inner = GROUPED.sub(lambda found: found[0].replace(",", "").replace(" ", ""), text)
        inner = AND.sub(",", inner)
    parts = _split(inner)
    if len(parts) == 1 and not kind and "\\pm" in text:
        return Members("", [text.replace("\\pm", sign, 1).lstrip("+ ") for sign in ("+", "-")])
    return Members(kind, parts if kind or len(parts) > 1 else [text])


def _is_pair(text: str, opening: str, closing: str) -> bool:
    """True if the first bracket is closed by the last one."""
    depth = 0
    end = len(text) - len(closing)
    for place in range(end):
        character = text[place]
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and place >= len(opening) - 1:
            return False
    return depth == 1


def _split(text: str) -> list[str]:
    """Parts between commas that are in no bracket."""
    parts, depth, start = [], 0, 0
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]


def _same_members(mine: Members, reference: Members) -> bool:
    kinds = {mine.kind, reference.kind} - {""}
    if len(kinds) > 1 or len(mine.parts) != len(reference.parts) or len(mine.parts) > MAX_MEMBERS:
        return False
    if not kinds or kinds == {"{}"}:
        return same_members(mine.parts, reference.parts, _same)
    return all(map(_same, mine.parts, reference.parts))


# ── intervals ───────────────────────────────────────────────────────────────────────────────


class Interval(Struct, frozen=True):
    low: str
    high: str
    sides: str
    """``[`` or ``(`` and ``]`` or ``)``."""


def _interval(text: str) -> Interval | None:
    """Read ``[1, 3)``, ``1 \\le x < 3``, ``x \\ge 1``; None if it is no interval."""
    members = _members(text)
    if len(members.parts) == 2 and members.kind in ("[]", "[)", "(]", "()"):
        return Interval(members.parts[0], members.parts[1], members.kind)
    for pattern, is_less in ((LESS, True), (MORE, False)):
        pieces = pattern.split(text)
        strict = [sign in "<>" for sign in pieces[1::2]]
        sides = [piece.strip() for piece in pieces[::2]]
        if not is_less:
            strict, sides = strict[::-1], sides[::-1]
        match sides:
            case [low, name, high] if re.fullmatch(r"[A-Za-z]", name):
                return Interval(low, high, f"{'(' if strict[0] else '['}{')' if strict[1] else ']'}")
            case [name, high] if re.fullmatch(r"[A-Za-z]", name):
                return Interval("-\\infty", high, f"({')' if strict[0] else ']'}")
            case [low, name] if re.fullmatch(r"[A-Za-z]", name):
                return Interval(low, "\\infty", f"{'(' if strict[0] else '['})")
    return None


def _same_end(given: str, answer: str) -> bool:
    if INFINITE.fullmatch(given) or INFINITE.fullmatch(answer):
        ends = ["".join(one.split()).removeprefix("+") for one in (given, answer)]
        return ends[0] == ends[1]
    return _same(given, answer)


# ── one value ───────────────────────────────────────────────────────────────────────────────


def _same_links(given: str, answer: str) -> bool:
    """Compare two values, or equations. Each link of a chain of equalities must be the answer."""
    links, wanted = ([one.strip() for one in text.split("=")] for text in (given, answer))
    names = [one[0] if len(one) > 1 and NAME.fullmatch(one[0]) else "" for one in (links, wanted)]
    is_named = len(wanted) == 2 and bool(names[1])
    if is_named and (len(links) == 1 or "".join(names[0].split()) == "".join(names[1].split())):
        answer = wanted[1]
    elif len(wanted) > 1:
        return len(links) == 2 and _same_single(given, answer)
    if names[0]:
        links = links[1:]
    return all(bool(link) and _same_single(link, answer) for link in links)


def _same_single(given: str, answer: str) -> bool:
    mine, reference = quantity(given), quantity(answer)
    factor = conversion(mine.unit, reference.unit)
    if factor is None:
        return False
    if {mine.unit, reference.unit} == {"%", ""} and _same_core(_over_100(mine), _over_100(reference), Fraction(1)):
        return True
    return _same_core(mine, reference, factor)


def _over_100(read: Quantity) -> Quantity:
    """A value in percent as a share."""
    number = read_number(read.value)
    is_percent = read.unit == "%" and number is not None and number.value is not None
    return Quantity(_written(number.value / 100)) if is_percent and number else Quantity(read.value, "", read.factor)


def _written(value: Fraction) -> str:
    return f"{'-' if value < 0 else ''}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def _same_core(mine: Quantity, reference: Quantity, factor: Fraction) -> bool:
    """Compare values apart from their units; the first is multiplied by ``factor``."""
    given, answer = mine.value, reference.value
    letters = _letters(given), _letters(answer)
    if any(one and not _is_algebra(one) for one in letters) or (
        letters[0] and letters[1] and FONT.search(given + answer)
    ):
        return _folded(letters[0]) == _folded(letters[1])
    numbers = read_number(given), read_number(answer)
    if numbers[0] and numbers[1]:
        value = numbers[0].value * mine.factor * factor
        wanted = numbers[1].value * reference.factor
        return value == wanted or (factor == 1 and is_rounded(numbers[0], numbers[1]))
    if factor != 1 or mine.factor != 1 or reference.factor != 1:
        return False
    if "".join(given.split()) == "".join(answer.split()):
        return not BESIDE.search(given) or given == answer
    if any(BESIDE.search(text) or _has_words(text) for text in (given, answer)):
        return False
    return _same_expressions(given, answer)


def _letters(text: str) -> str:
    """An answer that is words or letters, without fonts and brackets; empty if it has anything else."""
    bare = FONT.sub(r" \1 ", text).strip()
    while bare.startswith("(") and bare.endswith(")") and bare.count("(") == 1:
        bare = bare[1:-1].strip()
    bare = bare.strip(" .:")
    return bare if LETTERS.fullmatch(bare) else ""


def _is_algebra(letters: str) -> bool:
    """True for variables and their products; False for a word, a name, a choice, a sequence of letters."""
    if len(letters) == 1:
        return letters.islower() or not letters.isascii()
    if not (letters.isascii() and letters.isalpha() and letters.islower()):
        return False
    is_product = len(letters) == 2 and letters not in SHORT_WORDS
    return is_product or letters in FUNCTIONS or any(set(letters) <= variables for variables in VARIABLES)


def _folded(words: str) -> str:
    """Words without case and articles; a single letter keeps its case."""
    if len(words) == 1:
        return words
    folded = " ".join(words.casefold().replace(",", " ").split())
    return re.sub(r"^(?:the|a|an) ", "", folded)


def _has_words(text: str) -> bool:
    """True if an expression has words that its parser would drop or multiply."""
    text = ENVIRONMENT.sub("", text)
    return bool(FONT.search(text)) or any(run not in FUNCTIONS for run in RUN.findall(text))


def _same_expressions(given: str, answer: str) -> bool:
    mine, reference = _parsed(given), _parsed(answer)
    if mine is None or reference is None:
        return False
    try:
        if expression.equal(mine, reference):
            return True
        return _is_rounded_value(read_number(given), reference) or _is_rounded_value(read_number(answer), mine)
    except Unreadable:
        return False


def _is_rounded_value(decimal: Number | None, exact: object) -> bool:
    if decimal is None or decimal.digits < SIGNIFICANT or getattr(exact, "free_symbols", True):
        return False
    return bool(
        abs(expression.value(exact, {}) - expression.rational(decimal.value)) <= expression.rational(decimal.step)
    )


def _parsed(latex: str) -> object | None:
    if is_trap(latex) or _has_large_power(latex):
        return None
    parsed: list[object] = parse(f"${latex}$", LATEX, parsing_timeout=None)
    return parsed[0] if parsed and not isinstance(parsed[0], str) else None


def _has_large_power(latex: str) -> bool:
    """True if an exponent has a number of more than four digits before its point."""
    for found in re.finditer(r"\^\s?", latex):
        rest = latex[found.end() :]
        group = rest[: _group_end(rest)]
        if any(len(run) > 4 for run in re.findall(r"(?<![.0-9])[0-9]+", group)):
            return True
    return False


def _group_end(text: str) -> int:
    """End of the first argument of a command: a group in braces, a command or a character."""
    if not text.startswith("{"):
        return 1 if not text.startswith("\\") else len(text.split(" ", 1)[0])
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return place + 1
    return len(text)
