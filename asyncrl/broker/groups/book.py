"""
The open groups of both splits, and lookup of a unit's group and slot.

A training group is open from admission until it is dropped or no checkpoint needs it any more, a held-out group until
every completion of it has a reward or was given up.
"""

from collections.abc import Iterator

from asyncrl.broker.groups.group import Group, Slot
from asyncrl.messages.trajectory import Unit
from asyncrl.messages.words import Split


class GroupBook:
    def __init__(self) -> None:
        self.train: dict[int, Group] = {}
        self.held_out: dict[int, Group] = {}
        self._by_split: dict[Split, dict[int, Group]] = {"train": self.train, "held_out": self.held_out}

    def __iter__(self) -> Iterator[Group]:
        yield from self.train.values()
        yield from self.held_out.values()

    def __bool__(self) -> bool:
        return bool(self.train or self.held_out)

    def add(self, group: Group) -> None:
        self._by_split[group.split][group.group_id] = group

    def remove(self, group: Group) -> None:
        del self._by_split[group.split][group.group_id]

    def group(self, unit: Unit) -> Group | None:
        return self._by_split[unit.split].get(unit.group_id)

    def find(self, unit: Unit) -> tuple[Group, Slot] | tuple[None, None]:
        """Group and slot of ``unit``; None for both if its group is not open or has no such index."""
        group = self._by_split[unit.split].get(unit.group_id)
        return (group, group.slots[unit.index]) if group and 0 <= unit.index < group.size else (None, None)

    def slot(self, unit: Unit) -> Slot | None:
        return self.find(unit)[1]
