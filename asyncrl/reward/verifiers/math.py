"""Verifiers of mathematics: a final answer against the reference, by value."""

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
            return after_answer(completion)
        return last_boxed(completion)


# ── geo3k ─────────────────────────────────────────────────────────────────────────────────────
# Geometry3K: the boxed answer, and some reward for the format.

SHAPE = "<think>...</think>...\\boxed{...}..."


class Geo3k(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    ``(1 - format_weight) * accuracy + format_weight * format``, both 0 or 1 and metrics of their own.

    Source:
        verl's reward for hiyouga/geometry3k, which compares with mathruler.
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


# ── math dapo ─────────────────────────────────────────────────────────────────────────────────
# DAPO's reward for competition mathematics: the same comparison, another place of the answer, and +1 or -1.

TAIL_CHARS = 300
"""Length of the tail that is searched for the answer."""


class MathDapo(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    1.0 if the completion ends in the answer, else -1.0; ``correct`` is 1 or 0.

    Source:
        Yu et al. 2025, arXiv:2503.14476, eq. 7.
    """

    boxed: bool = False
    """The answer is only looked for in the last box; otherwise after ``Answer:``, and in a box without that."""

    def __call__(self, inputs: VerifierInput, /) -> dict[str, float | str]:
        """Return score, ``correct``, answer, and ``not_computed`` as `math` does; raises `VerifierError` likewise."""
        tail = inputs.completion[-TAIL_CHARS:]
        marked = None if self.boxed else after_answer(tail)
        given = last_boxed(tail) if marked is None else marked
        is_same, is_computed = compare(given or "", last_boxed(inputs.answer) or inputs.answer)
        return {
            "score": 1.0 if is_same else -1.0,
            "correct": float(is_same),
            "not_computed": float(not is_computed),
            "answer": canonical(given or ""),
        }
