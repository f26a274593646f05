"""Queue of stored trajectories by group, and which reward node grades which."""

from collections import OrderedDict

from asyncrl.broker.groups.group import Group, Slot
from asyncrl.messages import Split, Unit


class GradeBook:
    """Trajectories that are queued for grading or being graded. Its length counts both."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[tuple[int, Split], list[Slot]] = OrderedDict()
        """Queued slots by id and split of their group, the group that waits longest first. No list is empty."""
        self._assigned: dict[Unit, tuple[Slot, str]] = {}

    def __len__(self) -> int:
        return self.num_waiting + len(self._assigned)

    def add(self, slot: Slot) -> None:
        self._waiting.setdefault((slot.unit.group_id, slot.unit.split), []).append(slot)

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def assign(self, peer: str, at_most: int) -> list[Slot]:
        """Assign up to ``at_most`` slots to a reward node, all of one group: the group that waits longest."""
        key, waiting = next(iter(self._waiting.items()))
        slots, rest = waiting[:at_most], waiting[at_most:]
        if rest:
            self._waiting[key] = rest
        else:
            del self._waiting[key]
        for slot in slots:
            self._assigned[slot.unit] = (slot, peer)
        return slots

    def settle(self, unit: Unit) -> Slot | None:
        """End one grading. Returns its slot; None if the unit is not being graded."""
        slot, _ = self._assigned.pop(unit, (None, ""))
        return slot

    def revoke(self, peer: str) -> None:
        """Put everything a lost node was grading back at the head of the queue."""
        lost = [slot for slot, holder in self._assigned.values() if holder == peer]
        later, self._waiting = self._waiting, OrderedDict()
        for slot in lost:
            del self._assigned[slot.unit]
            self.add(slot)
        for slot in (slot for slots in later.values() for slot in slots):
            self.add(slot)

    def drop(self, group: Group) -> None:
        self._waiting.pop((group.group_id, group.split), None)
        for slot in group.slots:
            self._assigned.pop(slot.unit, None)
