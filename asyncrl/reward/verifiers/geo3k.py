"""Geometry3K: the boxed answer, and some reward for the format."""

from typing import Annotated

from msgspec import Meta, Struct

from asyncrl.reward.answers.final_answer import last_boxed
from asyncrl.reward.answers.same_value import canonical, compare
from asyncrl.reward.answers.template import fits
from asyncrl.reward.verifier import VerifierInput

SHAPE = "<think>...</think>...\\boxed{...}..."


class Geo3k(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    ``(1 - format_weight) * accuracy + format_weight * format``, both 0 or 1 and metrics of their own.

    Source:
        verl's reward for hiyouga/geometry3k, with math-verify instead of mathruler.
    """

    format_weight: Annotated[float, Meta(ge=0, le=1)] = 0.1

    def __call__(self, inputs: VerifierInput, /) -> dict[str, float | str]:
        """
        Return score, ``accuracy``, ``format``, answer, and ``not_computed`` as `math` does.

        Raises:
            VerifierError: The row has no answer.
        """
        given = last_boxed(inputs.completion) or ""
        is_same, is_computed = compare(given, inputs.answer)
        accuracy = float(is_same)
        shape = float(fits(SHAPE, inputs.opened + inputs.completion))
        score = (1 - self.format_weight) * accuracy + self.format_weight * shape
        return {
            "score": score,
            "accuracy": accuracy,
            "format": shape,
            "correct": accuracy,
            "not_computed": float(not is_computed),
            "answer": canonical(given),
        }
