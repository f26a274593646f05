"""Mathematics: the last boxed answer, or the one behind the last ``Answer:``, must mean the same as the reference."""

from typing import Literal

from msgspec import Struct

from asyncrl.reward.answers.final_answer import after_answer, last_boxed
from asyncrl.reward.answers.same_value import same_value
from asyncrl.reward.verifier import VerifierInput


class Math(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    1.0 if the final answer means what the reference means, else 0.0.

    Source:
        Hendrycks et al. 2021, arXiv:2103.03874: answers are in the last ``\\boxed{}``.
    """

    form: Literal["any", "boxed", "answer"] = "any"
    """Where the answer is. ``any``: in a box if there is one, else behind ``Answer:``."""

    def __call__(self, sample: VerifierInput, /) -> dict[str, float | str]:
        """
        Score and answer; the reference may be the bare answer or a whole worked solution with a box.

        Raises:
            VerifierError: The row has no answer.
        """
        said = self._said(sample.completion)
        correct = said is not None and same_value(said, last_boxed(sample.answer) or sample.answer)
        return {"score": float(correct), "answer": said or ""}

    def _said(self, completion: str) -> str | None:
        if self.form == "answer" or (self.form == "any" and "\\boxed" not in completion):
            marked = after_answer(completion)
            return marked and (last_boxed(marked) or marked)
        return last_boxed(completion)
