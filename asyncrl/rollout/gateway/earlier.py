"""
Turns that another node recorded before it was lost, to be given again to an agent program that runs again.

    program asks ─▶ the same tokens, after the same turn, are in the record ─▶ the recorded turn, unsampled
                                                          are not           ─▶ sampled
    a recorded turn that is unfinished ─▶ sampling continues it

Requests are compared by the ids that the policy would read, so the program may word its messages as it likes. Turns
that the second run never asks for leave the record: nothing in the new episode depends on them.
"""

from collections import defaultdict, deque
from collections.abc import Sequence

from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT
from asyncrl.rollout.episodes.record import RecordedTurn


class EarlierTurns:
    """Recorded turns that were not asked for yet. A turn is given once."""

    def __init__(self, turns: Sequence[RecordedTurn] = ()) -> None:
        self._left: dict[tuple[int, tuple[int, ...]], deque[int]] = defaultdict(deque)
        self._turns = list(turns)
        self._earlier = {FROM_PROMPT: FROM_PROMPT, FROM_NOTHING: FROM_NOTHING}
        """Index in the earlier record by index in the new one."""
        for place, turn in enumerate(self._turns):
            self._left[turn.parent, tuple(turn.context_ids)].append(place)

    @property
    def num_left(self) -> int:
        return sum(len(places) for places in self._left.values())

    def take(self, parent: int, context_ids: Sequence[int]) -> tuple[int, RecordedTurn] | None:
        """The first turn left that followed ``parent`` (in the new record) and this context, with its earlier index."""
        if not self._turns or (earlier := self._earlier.get(parent)) is None:
            return None
        places = self._left.get((earlier, tuple(context_ids)))
        if not places:
            return None
        place = places.popleft()
        return place, self._turns[place]

    def moved(self, earlier: int, place: int) -> None:
        """The turn with this earlier index is in the new record at ``place``."""
        self._earlier[place] = earlier
