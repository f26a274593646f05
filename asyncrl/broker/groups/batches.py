"""
Which complete groups go into which step. Asked again, a step gets the same answer.

    admitted ─▶ incomplete ─▶ complete ─form─▶ taken ─forget─▶ gone

``fifo``: the oldest open groups, waited for if need be. ``completion``: whichever are complete, in that order; with a
`StalenessBound`, enough of those that would soon be too old, and a step waits for these.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from asyncrl.broker.groups.group import Group
from asyncrl.broker.groups.max_staleness import StalenessBound
from asyncrl.errors import BrokenInvariant


class BatchBook:
    """
    Open groups, and what the steps took.

    Args:
        groups_per_step: P, groups of one batch.
        order: ``fifo`` or ``completion``.
        bound: ``completion`` only: no group is left until it is too old for any step. None: groups are never too old.
    """

    def __init__(self, groups_per_step: int, order: str, bound: StalenessBound | None = None) -> None:
        self._groups_per_step = groups_per_step
        self._fifo = order == "fifo"
        self._bound = bound
        self._head: OrderedDict[int, Group] = OrderedDict()
        """fifo: open groups in the order admitted, up to the first incomplete one, as far as we have looked."""
        self._rest: OrderedDict[int, Group] = OrderedDict()
        """The other open ones, in the order admitted."""
        self._complete: OrderedDict[int, Group] = OrderedDict()
        """Those of both that are complete, in the order completed."""
        self._num_open: Counter[int] = Counter()
        self._num_complete: Counter[int] = Counter()
        """Open groups, and complete ones, by the version they were admitted at: a handful of versions."""
        self._taken: dict[int, list[Group]] = {}
        self.next_step = 0
        """The step whose batch is formed next."""

    def __iter__(self) -> Iterator[Group]:
        """Open groups, in the order admitted."""
        return chain(self._head.values(), self._rest.values())

    @property
    def complete(self) -> list[Group]:
        """Open groups of which every trajectory has a reward, in the order completed."""
        return list(self._complete.values())

    def admitted(self, group: Group) -> None:
        """A group was opened, or begins anew: it is now the youngest."""
        self._rest[group.group_id] = group
        self._num_open[group.min_version] += 1

    def completed(self, group: Group) -> None:
        """Every trajectory of a group has a reward."""
        self._complete[group.group_id] = group
        self._num_complete[group.min_version] += 1

    def dropped(self, group: Group) -> None:
        """A group will not be trained on as it is."""
        self._head.pop(group.group_id, None)
        self._rest.pop(group.group_id, None)
        if self._complete.pop(group.group_id, None):
            self._num_complete[group.min_version] -= 1
        self._num_open[group.min_version] -= 1
        if not self._num_open[group.min_version]:
            del self._num_open[group.min_version], self._num_complete[group.min_version]

    def taken(self, step: int) -> list[Group] | None:
        """What ``step`` got, if it was formed already and not forgotten."""
        return self._taken.get(step)

    def form(self, step: int) -> list[Group] | None:
        """
        The batch of the next step, or None while its groups are not complete.

        Raises:
            BrokenInvariant: More groups would be too old for any later step than a batch holds.
        """
        if step != self.next_step or len(self._complete) < self._groups_per_step:
            return None
        groups = self._oldest() if self._fifo else self._first_complete(step)
        if groups is None:
            return None
        self.take(step, groups)
        return groups

    def take(self, step: int, groups: list[Group]) -> None:
        """``step`` gets these."""
        for group in groups:
            self.dropped(group)
        self._taken[step] = groups
        self.next_step = step + 1

    def forget(self, step: int) -> list[Group]:
        """A checkpoint contains every step up to ``step``: they will not be asked for again."""
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
    """The first of ``groups``, until so many are chosen."""
    for group in groups:
        if len(chosen) >= number:
            return
        chosen[group.group_id] = group
