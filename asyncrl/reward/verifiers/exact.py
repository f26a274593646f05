"""Exact match, for tasks whose answer has one spelling."""

from msgspec import Struct

from asyncrl.errors import VerifierError
from asyncrl.reward.verifier import VerifierInput


class Exact(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """1.0 if the stripped completion equals the stripped answer, else 0.0."""

    after: str = ""
    """Compare only the text after the last occurrence of this; a completion without it scores 0."""
    ignore_case: bool = False

    def __call__(self, inputs: VerifierInput, /) -> dict[str, float | str]:
        """Return score and answer; raises `VerifierError` if the row has no answer."""
        if not (answer := self._normalized(inputs.answer)):
            raise VerifierError("the row has no answer to compare with; repair or drop it")
        _, marker, text = inputs.completion.rpartition(self.after) if self.after else ("", "whole", inputs.completion)
        given = self._normalized(text)
        correct = bool(marker) and given == answer
        return {"score": float(correct), "answer": given if marker else ""}

    def _normalized(self, text: str) -> str:
        text = text.strip()
        return text.casefold() if self.ignore_case else text
