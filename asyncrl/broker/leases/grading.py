"""
Queue of stored trajectories by group, and which reward node grades which.

    reward.function    stored ─▶ queued ─▶ assigned ─▶ graded        each for itself
    reward.group       stored, until all of the group that will come are ─▶ queued ─▶ assigned ─▶ graded
                         ▲                            all at once, to one node         │
                         └─────────────── one of them has failed ──────────────────────┘

Trajectories whose spool is away are parked: no reward node could read them.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from itertools import takewhile

from asyncrl.broker.groups.group import Group, GroupBook, Slot, SlotState
from asyncrl.messages.trajectory import Unit
from asyncrl.messages.words import Split

Queued = tuple[int, Split]
"""Id and split of a group with queued slots."""

NOBODY = None, "", 0.0


class GradeBook:
    """
    Trajectories that are queued for grading or being graded. Its length counts both.

    Args:
        whole: Groups whose trajectories for training are graded all at once; None grades each for itself.
    """

    def __init__(self, whole: GroupBook | None = None) -> None:
        self._whole = whole
        self.waiting: OrderedDict[Queued, list[Slot]] = OrderedDict()
        """Queued slots by id and split of their group, the group that waits longest first. No list is empty."""
        self._assigned: dict[Unit, tuple[Slot, str, float]] = {}
        """Slot, peer of its reward node, and the time at which that was asked; in the order of these."""
        self._parked: dict[str, dict[Unit, Slot]] = {}
        """Slots of each spool that is away, by its name."""

    def __len__(self) -> int:
        return self.num_waiting + len(self._assigned) + sum(map(len, self._parked.values()))

    def add(self, slot: Slot) -> None:
        """Queue a stored trajectory; of a whole group all of them, unless one that will come is not stored yet."""
        slots, key = self._together(slot), (slot.unit.group_id, slot.unit.split)
        refs = (each.ref for each in slots if each.ref)
        away = next((ref.spool for ref in refs if ref.spool in self._parked), None) if self._parked else None
        if away is not None:
            self._parked[away] |= {each.unit: each for each in slots}
        elif not self._is_whole(key):
            self.waiting.setdefault(key, []).append(slot)
        elif slots:
            self.waiting[key] = list(slots)

    def left_out(self, group: Group) -> None:
        """A group goes on without one of its trajectories: the others do not wait for it any more."""
        if self._whole is not None:
            self.add(group.kept[0])

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self.waiting.values()))

    def num_assigned(self) -> Counter[str]:
        """Number of trajectories that each reward node is grading, by its peer."""
        return Counter(peer for _, peer, _ in self._assigned.values())

    def least(self, key: Queued) -> list[Slot]:
        """Queued slots that a node must take at once, if it takes any of this group: one, or a whole group."""
        return self.waiting[key] if self._is_whole(key) else self.waiting[key][:1]

    def assign(self, peer: str, at_most: int, key: Queued | None = None, now_s: float = 0.0) -> list[Slot]:
        """
        Assign up to ``at_most`` slots to a reward node, all of one group and with the same failures so far; or a whole
        group.

        None for the ``key`` is the group that waits longest.
        """
        key = key or next(iter(self.waiting))
        waiting = self.waiting[key]
        alike = [slot for slot in waiting if slot.failed_on == waiting[0].failed_on or self._is_whole(key)]
        slots = alike if self._is_whole(key) else alike[:at_most]
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

    def withdraw(self, slot: Slot) -> None:
        """End the grading of a trajectory without a verdict, and of all that are graded together with it."""
        for each in self._together(slot):
            self._assigned.pop(each.unit, None)

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

    @property
    def awaited_spools(self) -> list[str]:
        """Spools that are away and store what is to be graded."""
        return [name for name, slots in self._parked.items() if slots]

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

    def _is_whole(self, key: Queued) -> bool:
        """True if one node grades all of a group at once. Held-out completions are measured each for itself."""
        return self._whole is not None and key[1] == "train"

    def _together(self, slot: Slot) -> Sequence[Slot]:
        """Slots that are graded together with this one, itself among them; empty until all of them are stored."""
        if self._whole is None or slot.unit.split == "held_out" or not (group := self._whole.group(slot.unit)):
            return (slot,)
        kept = group.kept
        return kept if all(each.state is SlotState.STORED for each in kept) else ()
