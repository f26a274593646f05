"""Sampling mask of every token of one completion, recorded while the completion is decoded."""

from collections.abc import Sequence

from asyncrl.rollout.engine import Completion


class Masks:
    """Masks of a completion that is being decoded, preceded by those of the completion that it resumes."""

    def __init__(self, resumed: Completion | None = None) -> None:
        self.counts = list(resumed.mask_counts) if resumed else []
        """Number of ids in each mask, [T]; becomes `Completion.mask_counts`."""
        self.ids = list(resumed.mask_ids) if resumed else []
        """Ids of all masks; becomes `Completion.mask_ids`."""

    def add(self, token_ids: Sequence[int]) -> None:
        """Record the ids, in ascending order, from which the next token was drawn."""
        self.counts.append(len(token_ids))
        self.ids.extend(token_ids)
