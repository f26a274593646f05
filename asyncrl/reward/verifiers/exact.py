"""Exact match, for tasks whose answer has one spelling."""

from msgspec import Struct

from asyncrl.reward.verifier import VerifierInput


class Exact(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """1.0 if the stripped completion equals the stripped answer, else 0.0."""

    after: str = ""
    """Compare only the text after the last occurrence of this; a completion without it scores 0."""
    ignore_case: bool = False

    def __call__(self, inputs: VerifierInput, /) -> dict[str, float | str]:
        _, marker, text = inputs.completion.rpartition(self.after) if self.after else ("", "whole", inputs.completion)
        given = self._normalized(text)
        correct = bool(marker) and given == self._normalized(inputs.answer)
        return {"score": float(correct), "answer": given if marker else ""}

    def _normalized(self, text: str) -> str:
        text = text.strip()
        return text.casefold() if self.ignore_case else text
