"""
Equality of two answers in LaTeX: ``\\frac{1}{2}`` and ``0.5``, ``(x+1)^2`` and ``x^2 + 2x + 1``.

Answers are compared as text first, then as sympy expressions by math-verify. Simplification has no time bound.
math-verify's own time limits use signals, which do not end a long computation in C and disturb an event loop; they are
switched off, so call this in a worker process that can be killed. Obvious traps are refused before.
"""

import logging
import re

from math_verify import LatexExtractionConfig, parse, verify
from sympy import Expr

from asyncrl.errors import VerifierError
from asyncrl.reward.answers.notation import plain

MAX_CHARS = 300
"""Longest answer compared as an expression; the longest of the MATH test split has 159."""
MAX_DEPTH = 16
"""Deepest nesting of braces and brackets: the parser's time grows quickly with it."""
TRAPS = re.compile(
    r"\^[\s{(+-]{0,8}[0-9]{5}|\^[^+\-=,;]{0,40}\^|[0-9]{4}[\s)}]{0,8}!|[)}!]\s?!|[0-9]{100}|binom[\s{]{0,8}[0-9]{5}"
)
"""
Numbers too large to compute: an exponent of five digits, a tower of exponents, the factorial of four digits or of a
factorial, a hundred digits in a row, a binomial coefficient of five digits. Every repetition has a bound, so it cannot
backtrack far.
"""

LATEX = [LatexExtractionConfig(boxed_match_priority=-1)]
"""LaTeX only: the library evaluates plain expressions with Python's ``eval``."""

logging.getLogger("math_verify").addHandler(logging.NullHandler())  # it warns that the time limits are off


def same_value(given: str, answer: str) -> bool:
    """Return True if a hostile answer equals the reference; raises `VerifierError` if the reference is empty."""
    given, answer = _normalized(given), _normalized(answer)
    if not answer:
        raise VerifierError("the row has no answer to compare with; repair or drop it")
    if given == answer:
        return True
    if not given or _is_trap(given):
        return False
    expected, value = _parsed(answer), _parsed(given)
    if _is_number(expected) and _has_variables(value):
        return False  # simplifying would take longest here
    return bool(verify(expected, value, timeout_seconds=None))


def _normalized(text: str) -> str:
    """Remove math delimiters, thin spaces, fonts of numbers, line breaks and the final full stop."""
    for sign in ("\\$", "$", "\\(", "\\)", "\\[", "\\]", "\0"):
        text = text.replace(sign, " ")
    text = plain(text.replace("\\,", "").replace("\\!", ""), keep_words=True)
    return " ".join(text.split()).removesuffix(".").rstrip()


def _parsed(latex: str) -> list[object]:
    parsed: list[object] = parse(f"${latex}$", LATEX, parsing_timeout=None)
    return parsed


def _is_number(parsed: list[object]) -> bool:
    """True for an expression without variables; not for sets, relations and words."""
    return bool(parsed) and isinstance(parsed[0], Expr) and not parsed[0].free_symbols


def _has_variables(parsed: list[object]) -> bool:
    return bool(parsed) and isinstance(parsed[0], Expr) and bool(parsed[0].free_symbols)


def _is_trap(text: str) -> bool:
    return len(text) > MAX_CHARS or _depth(text) > MAX_DEPTH or TRAPS.search(text) is not None


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "{([") - (character in "})]")
        deepest = max(deepest, depth)
    return deepest
