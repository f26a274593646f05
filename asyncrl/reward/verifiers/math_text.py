"""
Answers of mathematics that are compared as text, without a library: GSM8K's after ``####``, DAPO's after ``Answer:``.

Completions are hostile, so only the tail is searched, and no pattern here can backtrack: each is a run of characters
after a fixed start.
"""

import re
from typing import Literal

from msgspec import Struct

from asyncrl.errors import VerifierError
from asyncrl.reward.answers.final_answer import after_answer, last_boxed, plain, typeset, without_name
from asyncrl.reward.answers.quantity import conversion, quantity
from asyncrl.reward.verifier import VerifierInput

TAIL_CHARS = 300
"""Length of the tail that is searched; a longer one only finds numbers that are not the final answer."""

NUMBER = r"[-−]?\$?(?:[0-9][0-9,]*(?:\.[0-9]+)?|(?<![0-9.])\.[0-9]+)"
"""A number may start with its point, but not in the middle of another number or of an ellipsis."""
STRICT = re.compile(f"#### ({NUMBER})")
FLEXIBLE = re.compile(f"({NUMBER})")
POINT_FIRST = re.compile(r"(?<=^-)\.|^\.")


class Gsm8k(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    1.0 if the completion ends in the answer, else 0.0.

    Numbers are compared as text, without ``,`` and ``$``: ``1,000`` is ``1000`` and ``.5`` is ``0.5``, but ``18.0`` is
    not ``18``. A typeset minus (U+2212) is a minus.

    Source:
        Cobbe et al. 2021, arXiv:2110.14168: solutions end in ``#### `` and the number.
    """

    method: Literal["strict", "flexible"] = "strict"
    """``strict``: the last number after ``#### ``. ``flexible``: the last number anywhere."""

    def __call__(self, inputs: VerifierInput, /) -> dict[str, float | str]:
        """
        Return score and number; ``inputs.answer`` may be the bare number or a whole worked solution.

        Raises:
            VerifierError: The row has no answer.
        """
        pattern = STRICT if self.method == "strict" else FLEXIBLE
        found = pattern.findall(inputs.completion[-TAIL_CHARS:])
        given = _normalized(found[-1]) if found else ""
        answer = _normalized(inputs.answer.rpartition("####")[2])
        if not answer:
            raise VerifierError("the row has no answer to compare with; repair or drop it")
        correct = given == answer
        return {"score": float(correct), "answer": given}


def _normalized(number: str) -> str:
    bare = number.replace(",", "").replace("$", "").replace("−", "-").strip()
    return POINT_FIRST.sub("0.", bare)


# ── math dapo ─────────────────────────────────────────────────────────────────────────────────
# DAPO's reward for competition mathematics: the final answer must equal the reference as text, both normalized.
#
# No algebra: most of these answers are integers, and comparing text takes microseconds.

DECORATION = re.compile(r"\\[,;:! ]|\\(?:left|right|displaystyle)(?![a-zA-Z])|\\?\$|\\?%|\^\{?\\circ\}?|~")
SHORT_FRACTION = re.compile(r"\\[dt]?frac([0-9a-zA-Z])([0-9a-zA-Z])")
SHORT_ROOT = re.compile(r"\\sqrt([0-9a-zA-Z])")
ARTICLE = re.compile(r"(?i:\b(?:a|an|the)\s+)")
UNIT = re.compile(
    r"(?<=[0-9}])\s*(?:square|cubic)?\s*(?:units?|ways?|integers?|dollars?|cents?|points?|degrees?|digits?|minutes?"
    r"|hours?|days?|inches|inch|feet|ft|miles?|mph|km|cm|mm|meters?|pounds?|students?|edges?|meals?|multiples?)$"
)
THOUSANDS = re.compile(r"-?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")


class MathDapo(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    1.0 if the completion ends in the answer, else -1.0; ``correct`` is 1 or 0.

    Source:
        Yu et al. 2025, arXiv:2503.14476, eq. 7 (the two values); Lewkowycz et al. 2022, arXiv:2206.14858, app. D.1
        (normalization; the rules here differ and serve the same purpose).
    """

    boxed: bool = False
    """The answer is only looked for in the last box; otherwise after ``Answer:``, and in a box without that."""

    def __call__(self, inputs: VerifierInput, /) -> dict[str, float | str]:
        """Return score, ``correct`` and the normalized answer; raises `VerifierError` if the row has no answer."""
        reference = last_boxed(inputs.answer) or inputs.answer
        answer = normalized(reference)
        if not answer:
            raise VerifierError("the row has no answer to compare with; repair or drop it")
        tail = inputs.completion[-TAIL_CHARS:]
        given = None if self.boxed else after_answer(tail)
        given = last_boxed(tail) if given is None else given
        correct = given is not None and normalized(given) == answer and _measures_alike(given, reference)
        return {"score": 1.0 if correct else -1.0, "correct": float(correct), "answer": normalized(given or "")}


def normalized(answer: str) -> str:
    """Normalize an answer: remove fonts, signs, units, articles and spaces, and brace every fraction."""
    answer = quantity(without_name(plain(typeset(answer)).strip(" ."))).value
    answer = DECORATION.sub("", answer)
    answer = SHORT_FRACTION.sub(r"\\frac{\1}{\2}", answer.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac"))
    answer = SHORT_ROOT.sub(r"\\sqrt{\1}", answer)
    answer = UNIT.sub("", ARTICLE.sub("", answer).strip(" ."))
    answer = "".join(answer.split())
    return answer.replace(",", "") if THOUSANDS.fullmatch(answer) else answer


def _measures_alike(given: str, answer: str) -> bool:
    """True if the two have the same unit, or one of them has none."""
    mine, reference = (quantity(without_name(typeset(text))).unit for text in (given, answer))
    return conversion(mine, reference) == 1
