"""Geometry: a right answer in a box, and a bit for thinking first."""

from typing import Annotated

from msgspec import Meta, Struct

from asyncrl.reward.answers.final_answer import last_boxed
from asyncrl.reward.answers.same_value import same_value
from asyncrl.reward.answers.template import fits
from asyncrl.reward.verifier import VerifierInput

SHAPE = "<think>...</think>...\\boxed{...}..."


class Geo3k(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    ``(1 - format_weight) * accuracy + format_weight * format``, both 0 or 1 and metrics of their own.

    Source:
        verl's reward for hiyouga/geometry3k, with math-verify in the place of mathruler.
    """

    format_weight: Annotated[float, Meta(ge=0, le=1)] = 0.1

    def __call__(self, sample: VerifierInput, /) -> dict[str, float | str]:
        """
        Score, ``accuracy``, ``format``, and the answer.

        Raises:
            VerifierError: The row has no answer.
        """
        said = last_boxed(sample.completion)
        accuracy = float(said is not None and same_value(said, sample.answer))
        shape = float(fits(SHAPE, sample.completion))
        score = (1 - self.format_weight) * accuracy + self.format_weight * shape
        return {"score": score, "accuracy": accuracy, "format": shape, "correct": accuracy, "answer": said or ""}
