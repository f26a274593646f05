"""Queue of groups with missing trajectories, oldest first: lost trajectories are leased before fresh groups."""

import heapq
from collections.abc import Iterable

from asyncrl.broker.groups.group import Group, State


class WaitingGroups:
    """Holds each group at most once. A group whose missing trajectories arrived late leaves by itself."""

    def __init__(self, groups: Iterable[Group] = ()) -> None:
        self._groups: dict[int, Group] = {}
        self._ids: list[int] = []
        for group in groups:
            self.add(group)

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, group: Group) -> None:
        if group.group_id not in self._groups:
            self._groups[group.group_id] = group
            heapq.heappush(self._ids, group.group_id)

    def discard(self, group_id: int) -> None:
        self._groups.pop(group_id, None)

    def first(self) -> Group | None:
        """Oldest group with a missing trajectory; None if there is none."""
        while self._ids:
            group = self._groups.get(self._ids[0])
            if group and group.indices(State.MISSING):
                return group
            self._groups.pop(heapq.heappop(self._ids), None)
        return None
