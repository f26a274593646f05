"""
Competition mathematics as DAPO pays for it: the last ``Answer:`` must be the reference, letter by letter once both are
written the plain way.

No algebra: most of these answers are integers, and a comparison of text takes microseconds.
"""

import re

from msgspec import Struct

from asyncrl.errors import VerifierError
from asyncrl.reward.answers.final_answer import after_answer, last_boxed
from asyncrl.reward.verifier import VerifierInput

TAIL_CHARS = 300
"""Of the completion; the answer is in its last line."""

DECORATION = re.compile(r"\\[,;:! ]|\\(?:left|right|displaystyle)(?![a-zA-Z])|\\?\$|\\?%|\^\{?\\circ\}?|~")
WORDS = re.compile(r"\\(?:text|textbf|textrm|mathrm|mbox|boxed|fbox)\{([^{}]*)\}")
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
        (what a plain way of writing is: here by rules of our own to the same end).
    """

    boxed: bool = False
    """The answer is the last box instead of what follows ``Answer:``."""

    def __call__(self, sample: VerifierInput, /) -> dict[str, float | str]:
        """
        Score, ``correct``, and the answer in the plain way of writing.

        Raises:
            VerifierError: The row has no answer.
        """
        answer = plain(last_boxed(sample.answer) or sample.answer)
        if not answer:
            raise VerifierError("the row has no answer to compare with; mend or drop it")
        tail = sample.completion[-TAIL_CHARS:]
        said = last_boxed(tail) if self.boxed else after_answer(tail)
        correct = said is not None and plain(said) == answer
        return {"score": 1.0 if correct else -1.0, "correct": float(correct), "answer": plain(said or "")}


def plain(answer: str) -> str:
    """One way of writing for what is written in several: no signs, units, articles or spaces, every fraction braced."""
    answer = answer.rpartition("=")[2].strip(" .")
    answer = DECORATION.sub("", answer)
    while (bare := WORDS.sub(r"\1", answer)) != answer:
        answer = bare
    answer = SHORT_FRACTION.sub(r"\\frac{\1}{\2}", answer.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac"))
    answer = SHORT_ROOT.sub(r"\\sqrt{\1}", answer)
    answer = UNIT.sub("", ARTICLE.sub("", answer).strip(" ."))
    answer = "".join(answer.split())
    return answer.replace(",", "") if THOUSANDS.fullmatch(answer) else answer
