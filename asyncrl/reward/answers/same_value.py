"""
Whether two answers in LaTeX mean the same: ``\\frac{1}{2}`` and ``0.5``, ``(x+1)^2`` and ``x^2 + 2x + 1``.

Text against text first; then, as expressions of sympy, by math-verify. That may take for ever: simplification has no
bound. Its own time limits are signals, which would not end a long computation in C and are in the way of an event loop,
so they are switched off: it is for a worker process that can be killed. What is plainly not an answer but a trap never
gets so far.
"""

import logging
import re

from math_verify import LatexExtractionConfig, parse, verify
from sympy import Expr

from asyncrl.errors import VerifierError

MAX_CHARS = 300
"""Of an answer; the longest of the MATH test split has 159."""
MAX_DEPTH = 16
"""Braces and brackets within each other: the parser takes a time that grows quickly with them."""
TRAPS = re.compile(
    r"\^[\s{(+-]{0,8}[0-9]{5}|\^[^+\-=,;]{0,40}\^|[0-9]{4}[\s)}]{0,8}!|[)}!]\s?!|[0-9]{100}|binom[\s{]{0,8}[0-9]{5}"
)
"""
Numbers that nobody can write out: an exponent of five digits, a tower of exponents, the factorial of four digits or of
a factorial, a hundred digits in a row, a choice out of five digits. Every repetition has a bound: it cannot backtrack
far.
"""

LATEX = [LatexExtractionConfig(boxed_match_priority=-1)]
"""LaTeX only. The library would read plain expressions with Python's ``eval``."""

logging.getLogger("math_verify").addHandler(logging.NullHandler())  # It warns of the time limits being off.


def same_value(said: str, answer: str) -> bool:
    """
    Whether what was said is the answer.

    Args:
        said: Hostile.
        answer: The reference.

    Raises:
        VerifierError: The reference is empty, so that nothing could be right.
    """
    said, answer = _plain(said), _plain(answer)
    if not answer:
        raise VerifierError("the row has no answer to compare with; mend or drop it")
    if said == answer:
        return True
    if not said or _is_trap(said):
        return False
    wanted, given = _parsed(answer), _parsed(said)
    if _is_number(wanted) and _has_variables(given):
        return False  # where simplifying takes longest
    return bool(verify(wanted, given, timeout_seconds=None))


def _plain(text: str) -> str:
    """Without signs that switch to mathematics, thin spaces and a full stop, and on one line."""
    for sign in ("\\$", "$", "\\(", "\\)", "\\[", "\\]", "\0"):
        text = text.replace(sign, " ")
    text = text.replace("\\,", "").replace("\\!", "").replace("°", "^\\circ")
    return " ".join(text.split()).removesuffix(".").rstrip()


def _parsed(latex: str) -> list[object]:
    parsed: list[object] = parse(f"${latex}$", LATEX, parsing_timeout=None)
    return parsed


def _is_number(parsed: list[object]) -> bool:
    """Without a variable, and no set, relation or word."""
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
