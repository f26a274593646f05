"""Verifiers of mathematics: a final answer against the reference, by value or by text."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from asyncrl.reward.answers.final_answer import BOXES, after_answer, fits, last_boxed
from asyncrl.reward.answers.same_value import canonical, compare
from asyncrl.reward.verifier import VerifierInput

# ── math ──────────────────────────────────────────────────────────────────────────────────────
# Mathematics: the last boxed answer, or the one after the last ``Answer:``, must equal the reference in value.


class Math(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    1.0 if the final answer has the value of the reference, else 0.0.

    Source:
        Hendrycks et al. 2021, arXiv:2103.03874: answers are in the last ``\\boxed{}``.
    """

    form: Literal["any", "boxed", "answer"] = "any"
    """Place of the answer. ``any``: in a box if there is one, else after ``Answer:``."""

    def __call__(self, inputs: VerifierInput, /) -> dict[str, float | str]:
        """
        Return score, answer, and ``not_computed``: 1 for an answer that would have taken too long, which is wrong.

        The reference may be a bare answer or a solution with a box, but not empty.
        """
        given = self._final_answer(inputs.completion)
        is_same, is_computed = compare(given or "", last_boxed(inputs.answer) or inputs.answer)
        return {"score": float(is_same), "not_computed": float(not is_computed), "answer": canonical(given or "")}

    def _final_answer(self, completion: str) -> str | None:
        if self.form == "answer" or (self.form == "any" and not any(box in completion for box in BOXES)):
            marked = after_answer(completion)
            return marked and (last_boxed(marked) or marked)
        return last_boxed(completion)


# ── geo3k ─────────────────────────────────────────────────────────────────────────────────────
# Geometry3K: the boxed answer, and some reward for the format.

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
