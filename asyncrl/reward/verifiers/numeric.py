"""Number against number: for tasks whose answer may be written, or rounded, in more than one way."""

import math
import re
from typing import Annotated

from msgspec import Meta, Struct

from asyncrl.errors import VerifierError
from asyncrl.reward.verifier import VerifierInput

TAIL_CHARS = 300
"""Of the completion; the answer is at its end."""

NUMBER = re.compile(r"-?[0-9][0-9,]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
"""Runs of characters after a fixed start: it cannot backtrack."""


class Numeric(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """1.0 if the last number of the completion is the answer, within the tolerance, else 0.0."""

    tolerance: Annotated[float, Meta(ge=0)] = 1e-6
    """Largest difference, as a share of the larger of the two, or absolute where that is below 1."""

    def __call__(self, sample: VerifierInput, /) -> dict[str, float | str]:
        """
        Score and number.

        Raises:
            VerifierError: The answer is no finite number, so that no completion could be right.
        """
        answer = _number(sample.answer)
        if answer is None:
            raise VerifierError(f"the answer {sample.answer[:80]!r} has no finite number in it; mend or drop the row")
        said = _number(sample.completion[-TAIL_CHARS:])
        if said is None:
            return {"score": 0.0, "answer": ""}
        correct = math.isclose(said, answer, rel_tol=self.tolerance, abs_tol=self.tolerance)
        return {"score": float(correct), "answer": f"{said:.12g}"}


def _number(text: str) -> float | None:
    """The last number of a text, if it is finite."""
    found = NUMBER.findall(text)
    number = float(found[-1].replace(",", "")) if found else math.inf
    return number if math.isfinite(number) else None
