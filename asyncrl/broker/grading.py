"""Stored trajectories on their way to a verdict: a queue, and who judges what. Credits as for leases."""

from collections import deque

from asyncrl.broker.groups import Slot
from asyncrl.messages import Unit


class GradeBook:
    """What waits for a reward node, and what one has in hand."""

    def __init__(self) -> None:
        self._waiting: deque[Slot] = deque()
        self._in_hand: dict[Unit, tuple[Slot, str]] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self._in_hand)

    def add(self, slot: Slot) -> None:
        """A trajectory is stored and wants a verdict."""
        self._waiting.append(slot)

    @property
    def num_waiting(self) -> int:
        """Trajectories that no reward node has in hand."""
        return len(self._waiting)

    def assign(self, peer: str) -> Slot:
        """Hand the one that waits longest to a reward node."""
        slot = self._waiting.popleft()
        self._in_hand[slot.unit] = (slot, peer)
        return slot

    def settle(self, unit: Unit) -> Slot | None:
        """A verdict or a failure came: the slot, or None if nobody waits for it."""
        slot, _ = self._in_hand.pop(unit, (None, ""))
        return slot

    def revoke(self, peer: str) -> None:
        """A reward node is gone: what it had in hand waits again, first in the queue."""
        lost = [slot for slot, holder in self._in_hand.values() if holder == peer]
        for slot in reversed(lost):
            del self._in_hand[slot.unit]
            self._waiting.appendleft(slot)

    def drop(self, group_id: int, split: str) -> None:
        """Verdicts on this group are no longer wanted."""
        self._waiting = deque(s for s in self._waiting if (s.unit.group_id, s.unit.split) != (group_id, split))
        for unit in [u for u in self._in_hand if (u.group_id, u.split) == (group_id, split)]:
            del self._in_hand[unit]
