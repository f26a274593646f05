"""
Which complete groups go into which step. Asked again, a step gets the same answer.

``fifo``: the oldest open groups, waited for if need be. ``completion``: whichever are complete, in that order.
"""

from collections import deque
from itertools import islice

from asyncrl.broker.groups import Group


class BatchBook:
    """Complete groups, and what the steps took."""

    def __init__(self, groups_per_step: int, order: str) -> None:
        self._groups_per_step = groups_per_step
        self._fifo = order == "fifo"
        self._queue: deque[Group] = deque()
        """fifo: every open group in the order admitted. completion: complete groups in the order completed."""
        self._straggler: Group | None = None
        """The first group seen to be incomplete: until it is, nobody need look further."""
        self._taken: dict[int, list[Group]] = {}
        self.next_step = 0
        """The step whose batch is formed next."""

    def admitted(self, group: Group) -> None:
        """A group was opened."""
        if self._fifo:
            self._queue.append(group)

    def completed(self, group: Group) -> None:
        """Every trajectory of a group has a reward."""
        if not self._fifo:
            self._queue.append(group)

    def dropped(self, group: Group) -> None:
        """A group will not be trained on."""
        if group in self._queue:
            self._queue.remove(group)
        if group is self._straggler:
            self._straggler = None

    def taken(self, step: int) -> list[Group] | None:
        """What ``step`` got, if it was formed already and not forgotten."""
        return self._taken.get(step)

    def form(self, step: int) -> list[Group] | None:
        """The batch of the next step, or None while its groups are not complete."""
        if step != self.next_step or len(self._queue) < self._groups_per_step:
            return None
        if self._straggler is None or self._straggler.is_complete:
            head = islice(self._queue, self._groups_per_step)
            self._straggler = next((group for group in head if not group.is_complete), None)
        if self._straggler:
            return None
        self.take(step, list(islice(self._queue, self._groups_per_step)))
        return self._taken[step]

    def take(self, step: int, groups: list[Group]) -> None:
        """``step`` gets these."""
        for group in groups:
            self._queue.remove(group)
        self._taken[step] = groups
        self.next_step = step + 1

    def forget(self, step: int) -> list[Group]:
        """A checkpoint contains every step up to ``step``: they will not be asked for again."""
        old = [number for number in self._taken if number <= step]
        return [group for number in old for group in self._taken.pop(number)]
