"""
Queue of stored trajectories by group, and which reward node grades which.

Trajectories whose spool is away are parked: no reward node could read them.
"""

from collections import Counter, OrderedDict
from itertools import takewhile

from asyncrl.broker.groups.group import Group, Slot
from asyncrl.messages.trajectory import Unit
from asyncrl.messages.words import Split

Queued = tuple[int, Split]
"""Id and split of a group with queued slots."""

NOBODY = None, "", 0.0


class GradeBook:
    """Trajectories that are queued for grading or being graded. Its length counts both."""

    def __init__(self) -> None:
        self.waiting: OrderedDict[Queued, list[Slot]] = OrderedDict()
        """Queued slots by id and split of their group, the group that waits longest first. No list is empty."""
        self._assigned: dict[Unit, tuple[Slot, str, float]] = {}
        """Slot, peer of its reward node, and the time at which that was asked; in the order of these."""
        self._parked: dict[str, dict[Unit, Slot]] = {}
        """Slots of each spool that is away, by its name."""

    def __len__(self) -> int:
        return self.num_waiting + len(self._assigned) + sum(map(len, self._parked.values()))

    def add(self, slot: Slot) -> None:
        if slot.ref is not None and slot.ref.spool in self._parked:
            self._parked[slot.ref.spool][slot.unit] = slot
            return
        self.waiting.setdefault((slot.unit.group_id, slot.unit.split), []).append(slot)

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self.waiting.values()))

    def num_assigned(self) -> Counter[str]:
        """Number of trajectories that each reward node is grading, by its peer."""
        return Counter(peer for _, peer, _ in self._assigned.values())

    def assign(self, peer: str, at_most: int, key: Queued | None = None, now_s: float = 0.0) -> list[Slot]:
        """
        Assign up to ``at_most`` slots to a reward node, all of one group and with the same failures so far.

        None for the ``key`` is the group that waits longest.
        """
        key = key or next(iter(self.waiting))
        waiting = self.waiting[key]
        alike = [slot for slot in waiting if slot.failed_on == waiting[0].failed_on]
        slots = alike[:at_most]
        rest = waiting[at_most:] if len(alike) == len(waiting) else [slot for slot in waiting if slot not in slots]
        if rest:
            self.waiting[key] = rest
        else:
            del self.waiting[key]
        for slot in slots:
            self._assigned[slot.unit] = (slot, peer, now_s)
        return slots

    def settle(self, unit: Unit, peer: str) -> float | None:
        """End one grading by ``peer``. Returns the time at which it was asked; None if it does not grade the unit."""
        _, holder, asked_s = self._assigned.get(unit, NOBODY)
        if holder != peer:
            return None
        del self._assigned[unit]
        return asked_s

    def extend(self, seconds: float) -> None:
        """Push all times back, after ``seconds`` in which no node could be heard."""
        self._assigned = {unit: (slot, peer, at_s + seconds) for unit, (slot, peer, at_s) in self._assigned.items()}

    def older(self, than_s: float, now_s: float) -> list[tuple[Slot, str]]:
        """
        Slots whose grading has gone on for more than ``than_s``, the oldest first, each with the peer of its reward
        node.
        """
        old = takewhile(lambda item: now_s - item[2] > than_s, self._assigned.values())
        return [(slot, peer) for slot, peer, _ in old]

    def revoke(self, peer: str) -> None:
        """Put everything a lost node was grading back at the head of the queue."""
        lost = [slot for slot, holder, _ in self._assigned.values() if holder == peer]
        later, self.waiting = self.waiting, OrderedDict()
        for slot in lost:
            del self._assigned[slot.unit]
            self.add(slot)
        for slot in (slot for slots in later.values() for slot in slots):
            self.add(slot)

    def park(self, spool: str) -> None:
        """A spool is away: queue what it stores only once it is back. What is being graded ends by itself."""
        self._parked.setdefault(spool, {})
        queued, self.waiting = self.waiting, OrderedDict()
        for slot in (slot for slots in queued.values() for slot in slots):
            self.add(slot)

    def unpark(self, spool: str) -> None:
        """Queue the trajectories of a spool that is back for grading."""
        for slot in self._parked.pop(spool, {}).values():
            self.add(slot)

    def remove(self, slot: Slot) -> None:
        """Forget one trajectory, queued or being graded."""
        key = slot.unit.group_id, slot.unit.split
        others = [other for other in self.waiting.get(key, []) if other is not slot]
        if others:
            self.waiting[key] = others
        else:
            self.waiting.pop(key, None)
        self._assigned.pop(slot.unit, None)

    def drop(self, group: Group) -> None:
        """Forget the trajectories of a group."""
        self.waiting.pop((group.group_id, group.split), None)
        for slot in group.slots:
            self._assigned.pop(slot.unit, None)
            for parked in self._parked.values():
                parked.pop(slot.unit, None)
