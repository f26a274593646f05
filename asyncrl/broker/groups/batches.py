"""
Batches: which complete groups each step trains on. A step that asks again gets the same groups.

    admitted ─▶ incomplete ─▶ complete ─form─▶ taken ─forget─▶ gone

``fifo``: the oldest open groups; a step waits until they are complete. ``completion``: groups in the order in which
they became complete; with a `StalenessBound` a step waits for enough of those that would be too old for later steps.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from asyncrl.broker.groups.group import Group
from asyncrl.broker.groups.max_staleness import StalenessBound
from asyncrl.errors import BrokenInvariant


class BatchBook:
    """Groups that no step has taken yet, and the groups that each step took. Without ``bound`` none is ever too old."""

    def __init__(self, groups_per_step: int, order: str, bound: StalenessBound | None = None) -> None:
        self._groups_per_step = groups_per_step
        self._fifo = order == "fifo"
        self._bound = bound
        self._head: OrderedDict[int, Group] = OrderedDict()
        """fifo: oldest groups, all complete, in the order admitted. `_oldest` moves groups here from ``_rest``."""
        self._rest: OrderedDict[int, Group] = OrderedDict()
        """All other groups, in the order admitted."""
        self._complete: OrderedDict[int, Group] = OrderedDict()
        """Complete groups of ``_head`` and ``_rest``, in the order completed."""
        self._num_open: Counter[int] = Counter()
        self._num_complete: Counter[int] = Counter()
        """Number of groups, and of complete groups, by ``min_version``. Few versions are open at once."""
        self._taken: dict[int, list[Group]] = {}
        self.next_step = 0

    def __iter__(self) -> Iterator[Group]:
        """Groups that no step has taken, in the order admitted."""
        return chain(self._head.values(), self._rest.values())

    @property
    def complete(self) -> list[Group]:
        """Complete groups that no step has taken, in the order completed."""
        return list(self._complete.values())

    def admitted(self, group: Group) -> None:
        """Append a group that was admitted or restarted: it is now the youngest."""
        self._rest[group.group_id] = group
        self._num_open[group.min_version] += 1

    def completed(self, group: Group) -> None:
        self._complete[group.group_id] = group
        self._num_complete[group.min_version] += 1

    def dropped(self, group: Group) -> None:
        self._head.pop(group.group_id, None)
        self._rest.pop(group.group_id, None)
        if self._complete.pop(group.group_id, None):
            self._num_complete[group.min_version] -= 1
        self._num_open[group.min_version] -= 1
        if not self._num_open[group.min_version]:
            del self._num_open[group.min_version], self._num_complete[group.min_version]

    def taken(self, step: int) -> list[Group] | None:
        """Groups of ``step``; None if its batch is not formed yet or forgotten."""
        return self._taken.get(step)

    def must_wait(self, step: int) -> bool:
        """True while too few groups are complete for ``step``, which is the next one."""
        return step == self.next_step and len(self._complete) < self._groups_per_step

    def choose(self, step: int) -> list[Group] | None:
        """Groups for the batch of the next step; None while they are not complete."""
        if step != self.next_step or self.must_wait(step):
            return None
        return self._oldest() if self._fifo else self._first_complete(step)

    def form(self, step: int) -> list[Group] | None:
        """Form the batch of the next step; None while its groups are not complete."""
        if (groups := self.choose(step)) is not None:
            self.take(step, groups)
        return groups

    def take(self, step: int, groups: list[Group]) -> None:
        for group in groups:
            self.dropped(group)
        self._taken[step] = groups
        self.next_step = step + 1

    def forget(self, step: int) -> list[Group]:
        """Forget the batches of all steps up to ``step``. Returns their groups."""
        old = [number for number in self._taken if number <= step]
        return [group for number in old for group in self._taken.pop(number)]

    def _oldest(self) -> list[Group] | None:
        while (oldest := next(iter(self._rest.values()), None)) and oldest.is_complete:
            self._head[oldest.group_id] = self._rest.pop(oldest.group_id)
        if len(self._head) < self._groups_per_step:
            return None
        return list(islice(self._head.values(), self._groups_per_step))

    def _first_complete(self, step: int) -> list[Group] | None:
        due = self._bound.due(self._num_open, step) if self._bound else []
        if due and due[-1][1] > self._groups_per_step:
            raise BrokenInvariant(f"{due[-1][1]} groups are too old for any step after {step}: more than it takes")
        if any(sum(self._num_complete[v] for v in self._num_open if v <= version) < num for version, num in due):
            return None
        chosen: dict[int, Group] = {}
        for version, number in due:
            old = (group for group in self._complete.values() if group.min_version <= version)
            _add(chosen, old, number)
        _add(chosen, self._complete.values(), self._groups_per_step)
        return [group for group in self._complete.values() if group.group_id in chosen]


def _add(chosen: dict[int, Group], groups: Iterable[Group], number: int) -> None:
    for group in groups:
        if len(chosen) >= number:
            return
        chosen[group.group_id] = group
