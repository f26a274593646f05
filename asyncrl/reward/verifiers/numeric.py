"""Numeric match, for answers that may be written or rounded in several ways."""

import math
import re
from typing import Annotated

from msgspec import Meta, Struct

from asyncrl.errors import VerifierError
from asyncrl.reward.answers.notation import ASCII
from asyncrl.reward.verifier import VerifierInput

TAIL_CHARS = 300
"""Length of the tail that is searched for the answer."""

NUMBER = re.compile(r"-?(?:[0-9][0-9,]*(?:\.[0-9]+)?|(?<![0-9.])\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
"""
Runs of characters after a fixed start, so it cannot backtrack. A number may start with its point, but not in the middle
of another number or of an ellipsis.
"""


class Numeric(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """1.0 if the last number of the completion equals the answer within the tolerance, else 0.0."""

    tolerance: Annotated[float, Meta(ge=0)] = 1e-6
    """Largest difference, relative to the larger number. To an answer of 0 only 0 is equal."""

    def __call__(self, inputs: VerifierInput, /) -> dict[str, float | str]:
        """Return score and number; raises `VerifierError` if the reference is not a finite number."""
        answer = _number(inputs.answer)
        if answer is None:
            raise VerifierError(f"the answer {inputs.answer[:80]!r} has no finite number in it; repair or drop the row")
        given = _number(inputs.completion[-TAIL_CHARS:])
        if given is None:
            return {"score": 0.0, "answer": ""}
        correct = math.isclose(given, answer, rel_tol=self.tolerance, abs_tol=0.0)
        return {"score": float(correct), "answer": f"{given:.12g}"}


def _number(text: str) -> float | None:
    """Return the last number of a text, or None if there is no finite one; other typesettings of ASCII are that."""
    found = NUMBER.findall(text.translate(ASCII))
    number = float(found[-1].replace(",", "")) if found else math.inf
    return number if math.isfinite(number) else None
