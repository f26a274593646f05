"""
Free slots whose keys and values are those of a finished completion.

The next turn of an episode begins with all tokens of the one before, so it needs only those after them. A slot is kept
until another request takes it, and all are forgotten with new weights.
"""

from collections.abc import Sequence


class KeptTurns:
    """Tokens that are cached in free slots."""

    def __init__(self) -> None:
        self._tokens: dict[int, tuple[int, ...]] = {}

    def __contains__(self, slot: int) -> bool:
        return slot in self._tokens

    def keep(self, slot: int, tokens: tuple[int, ...]) -> None:
        """Remember that the slot has keys and values of these tokens."""
        self._tokens[slot] = tokens

    def forget(self, slot: int) -> None:
        """Forget a slot whose cells are about to be written."""
        self._tokens.pop(slot, None)

    def clear(self) -> None:
        self._tokens.clear()

    def longest(self, prefix: Sequence[int]) -> tuple[int, int]:
        """Slot with the most tokens that a prefix begins with, and their number; (-1, 0) if there is none."""
        found, most = -1, 0
        for slot, tokens in self._tokens.items():
            length = len(tokens)
            # The last token is compared first: most slots have those of other episodes.
            if most < length < len(prefix) and prefix[length - 1] == tokens[-1] and prefix[:length] == tokens:
                found, most = slot, length
        return found, most
