"""Stored trajectories on their way to a verdict: a queue by group, and who judges what. Credits as for leases."""

from collections import OrderedDict

from asyncrl.broker.groups.group import Group, Slot
from asyncrl.messages import Split, Unit

Key = tuple[int, Split]
"""A group: its id, and the split it is of."""


class GradeBook:
    """What waits for a reward node, and what one has in hand."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Key, list[Slot]] = OrderedDict()
        """Never an empty list; the group that waits longest first."""
        self._in_hand: dict[Unit, tuple[Slot, str]] = {}

    def __len__(self) -> int:
        return self.num_waiting + len(self._in_hand)

    def __bool__(self) -> bool:
        return bool(self._waiting or self._in_hand)

    def add(self, slot: Slot) -> None:
        """A trajectory is stored and wants a verdict."""
        self._waiting.setdefault(_key(slot.unit), []).append(slot)

    @property
    def is_waiting(self) -> bool:
        """Is there anything that no reward node has in hand?"""
        return bool(self._waiting)

    @property
    def num_waiting(self) -> int:
        """Trajectories that no reward node has in hand."""
        return sum(map(len, self._waiting.values()))

    def assign(self, peer: str, at_most: int) -> list[Slot]:
        """Hand those of the group that waits longest to a reward node: they are asked for together."""
        key, waiting = next(iter(self._waiting.items()))
        slots, rest = waiting[:at_most], waiting[at_most:]
        if rest:
            self._waiting[key] = rest
        else:
            del self._waiting[key]
        for slot in slots:
            self._in_hand[slot.unit] = (slot, peer)
        return slots

    def settle(self, unit: Unit) -> Slot | None:
        """A verdict or a failure came: the slot, or None if nobody waits for it."""
        slot, _ = self._in_hand.pop(unit, (None, ""))
        return slot

    def revoke(self, peer: str) -> None:
        """A reward node is gone: what it had in hand waits again, first in the queue."""
        lost = [slot for slot, holder in self._in_hand.values() if holder == peer]
        later, self._waiting = self._waiting, OrderedDict()
        for slot in lost:
            del self._in_hand[slot.unit]
            self.add(slot)
        for slot in (slot for slots in later.values() for slot in slots):
            self.add(slot)

    def drop(self, group: Group) -> None:
        """Verdicts on this group are no longer wanted."""
        self._waiting.pop((group.group_id, group.split), None)
        for slot in group.slots:
            self._in_hand.pop(slot.unit, None)


def _key(unit: Unit) -> Key:
    return unit.group_id, unit.split
