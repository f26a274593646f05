"""Text against text: for tasks whose answer has one spelling."""

from msgspec import Struct

from asyncrl.reward.verifier import VerifierInput


class Exact(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """1.0 if the completion is the answer, white space at both ends aside, else 0.0."""

    after: str = ""
    """Judge only what follows the last occurrence of this; a completion without it scores 0."""
    ignore_case: bool = False

    def __call__(self, sample: VerifierInput, /) -> dict[str, float | str]:
        """Score and answer."""
        _, marker, said = sample.completion.rpartition(self.after) if self.after else ("", "whole", sample.completion)
        said = self._plain(said)
        return {"score": float(bool(marker) and said == self._plain(sample.answer)), "answer": said if marker else ""}

    def _plain(self, text: str) -> str:
        text = text.strip()
        return text.casefold() if self.ignore_case else text
