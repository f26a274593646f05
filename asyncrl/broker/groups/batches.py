"""
Batches: which complete groups each step trains on, and how old they may be. A step that asks again gets the same
groups.

    admitted ─▶ incomplete ─▶ complete ─form─▶ taken ─forget─▶ gone

``fifo`` and ``windowed``: every admitted or restarted group has a slot in a line. A step takes the oldest complete
groups among the first R slots, R being ``reach``. A taken group leaves its slot empty, and the line moves on only when
its first group is taken or dropped:

    R = 4      [ a slow ][ b taken ][ c taken ][ d complete ]  [ e complete ] ...        d may be taken, e waits for a

``fifo`` is R = 1. ``completion``: groups in the order in which they became complete; with a `StalenessBound` a step
waits for enough of those that would be too old for later steps.

At most R - 1 younger groups are trained on in an earlier step than an older one. While the older one waits, the slots
of those that passed it stay in the line behind it, and slots only move forward: when the last of them was taken, all of
them and it were among the first R.

No group starves. The first group of the line may always be taken. As long as it is not complete, at most R - 1 others
are, so then a step waits for it; it becomes complete or is dropped, and the next group is the first. Groups are
admitted only as the remaining steps need them, so the last step empties the line.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping

from asyncrl.broker.groups.group import Group
from asyncrl.errors import BrokenInvariant
from asyncrl.records.formatting import nth

# ── max staleness ─────────────────────────────────────────────────────────────────────────────
# Bound on the age of a group when a step trains on it, in versions (L = ``schedule.max_staleness``).
#
#   P groups per step, T steps per publish: step s trains version s // T, so a group admitted while version v was live
#   may go into the steps up to its last one, (v + L + 1) T - 1
#
# A group is leased only to nodes that decode with the version that was live when it was admitted, or a newer one. So
# that version is a lower bound for each of its tokens, and ``s // T - v <= L`` bounds their staleness.
#
# Guarantees, each with a test of this name:
#   wait_keeps_max_staleness      no trained token is older than L versions, and no group is discarded for its age
#   reissue_keeps_max_staleness   no trained token is older than L versions, and discarded tokens are counted by length
#   train_counts_what_is_over_max_staleness      no step waits, no group is discarded, older trajectories are counted;
#                                                so with ``mask``, where the trainer leaves out their older tokens
#
# Proof that with ``wait`` it suffices to wait for the `due` groups. Let N(d) be the number of groups not consumed yet
# whose last step is d or an earlier one, and s the step formed next. All find a place in time if N(d) <= P (d - s + 1)
# for every d >= s.
#   At first there are none.
#   After step s is formed: the later steps up to d have P (d - s) places, so at least N(d) - P (d - s) of those groups
#   have to go into step s, whichever are complete first. `due` returns this number; it is at most P.
#   After an admission at version v: the P (s - v T) groups of the steps from v T on are consumed and not retired, so at
#   most W - P (s - v T) are not consumed, W being the window. The new group counts in N(d) for d >= (v + L + 1) T - 1
#   only, and there P (d - s + 1) >= (L + 1) P T - P (s - v T). So N(d) <= P (d - s + 1) if W <= (L + 1) P T.
# The config is checked for W <= (L + 1) P T. Without it, W groups admitted at version 0 could not all be consumed by
# their last step.


class StalenessBound:
    """Bounds that ``schedule.max_staleness`` puts on the step and on the version of a group."""

    def __init__(self, max_staleness: int, groups_per_step: int, steps_per_publish: int) -> None:
        self._max_staleness = max_staleness
        self._groups_per_step = groups_per_step
        self._steps_per_publish = steps_per_publish

    def last_step(self, min_version: int) -> int:
        """Last step that may consume a group admitted at this version."""
        return (min_version + self._max_staleness + 1) * self._steps_per_publish - 1

    def oldest_version(self, step: int) -> int:
        """Oldest ``min_version`` of a group that ``step`` may consume; below 0 if it may consume any."""
        return step // self._steps_per_publish - self._max_staleness

    def due(self, num_open: Mapping[int, int], step: int) -> list[tuple[int, int]]:
        """
        Groups that ``step``, formed next, must consume so that every other group can go into a later step.

        ``num_open`` counts the groups not consumed yet by the version they were admitted at. Of each returned pair
        ``(version, number)``, ascending in both, at least ``number`` groups admitted at ``version`` or before are due.
        """
        found: list[tuple[int, int]] = []
        num_until = num_due = 0
        for version in sorted(num_open):
            num_until += num_open[version]
            number = num_until - self._groups_per_step * (self.last_step(version) - step)
            if number > num_due:
                num_due = number
                found.append((version, number))
        return found


class Stragglers:
    """
    Groups that are too old for the next step and restart, with ``schedule.on_straggler = "reissue"``.

    They restart once a version is live that is new enough for the step: with an older one they would be too old again.
    So each group restarts at most once per version, and every step finds enough groups.
    """

    def __init__(self, bound: StalenessBound) -> None:
        self._bound = bound
        self._removed_below = 0
        """All groups admitted at older versions than this one have restarted already."""

    def overdue(self, groups: Iterable[Group], step: int, live_version: int) -> list[Group]:
        """
        Groups not consumed yet that restart before ``step``, formed next.

        A second call with the same ``step`` and ``live_version`` returns none, and does not iterate over ``groups``.
        """
        oldest = self._bound.oldest_version(step)
        if oldest <= self._removed_below or live_version < oldest:
            return []
        self._removed_below = oldest
        return [group for group in groups if group.min_version < oldest]

    def may_form(self, step: int, live_version: int) -> bool:
        """True if no open group is too old for ``step``."""
        return live_version >= self._bound.oldest_version(step)


# ── batches ───────────────────────────────────────────────────────────────────────────────────


class BatchBook:
    """
    Groups that no step has taken yet, and the groups that each step took.

    Args:
        reach: Slots of the line that a step takes groups from; None takes them as they become complete.
        bound: Groups that a step must take, without ``reach``. None: no group is ever too old.
    """

    def __init__(
        self, groups_per_step: int, reach: int | None, bound: StalenessBound | None = None, *, lr: float = 0.0
    ) -> None:
        self._groups_per_step = groups_per_step
        self._reach = reach
        self._bound = bound
        self._line: OrderedDict[int, Group | None] = OrderedDict()
        """Groups that no step has taken, in the order admitted; with a reach also the empty slots between them."""
        self._is_stuck = False
        """The groups within reach are too few, and none of the line was completed or dropped since that was found."""
        self._complete: OrderedDict[int, Group] = OrderedDict()
        """Complete groups of the line, in the order completed."""
        self._num_open: Counter[int] = Counter()
        self._num_complete: Counter[int] = Counter()
        """Number of groups, and of complete groups, by ``min_version``. Few versions are open at once."""
        self._taken: dict[int, list[Group]] = {}
        self.lr = lr
        """Learning rate of the steps that are taken from now on."""
        self.lr_of: dict[int, float] = {}
        """Learning rate of each taken step: a trainer that repeats the step must make the same weights."""
        self.next_step = 0

    def __iter__(self) -> Iterator[Group]:
        """Groups that no step has taken, in the order admitted."""
        return (group for group in self._line.values() if group is not None)

    @property
    def complete(self) -> list[Group]:
        """Complete groups that no step has taken, in the order completed."""
        return list(self._complete.values())

    def admitted(self, group: Group) -> None:
        """Append a group that was admitted or restarted: it is now the youngest."""
        self._line[group.group_id] = group
        self._num_open[group.min_version] += 1

    def completed(self, group: Group) -> None:
        self._complete[group.group_id] = group
        self._num_complete[group.min_version] += 1
        self._is_stuck = False

    def dropped(self, group: Group) -> None:
        """Remove a group that is not trained on, or restarts, together with its slot."""
        del self._line[group.group_id]
        self._left(group)

    def _left(self, group: Group) -> None:
        self._is_stuck = False
        while self._line and next(iter(self._line.values())) is None:
            self._line.popitem(last=False)
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
        return self._first_complete(step) if self._reach is None else self._within(self._reach)

    def take(self, step: int, groups: list[Group]) -> None:
        """Note that ``step`` takes these groups: chosen now, or by a broker before this one."""
        for group in groups:
            if self._reach is None:
                del self._line[group.group_id]
            else:
                self._line[group.group_id] = None
            self._left(group)
        self._taken[step] = groups
        self.lr_of[step] = self.lr
        self.next_step = step + 1

    def forget(self, step: int) -> list[Group]:
        """Forget the batches of all steps up to ``step``. Returns their groups."""
        old = [number for number in self._taken if number <= step]
        for number in old:
            del self.lr_of[number]
        return [group for number in old for group in self._taken.pop(number)]

    def _within(self, reach: int) -> list[Group] | None:
        """Oldest complete groups within reach. Each slot that is empty, or would be, at the front moves it by one."""
        chosen: list[Group] = []
        num_gone = 0
        for place, group in enumerate([] if self._is_stuck else self._line.values()):
            if place == num_gone + reach:
                break
            if group is not None and not group.is_complete:
                continue
            num_gone += place == num_gone
            if group is not None:
                chosen.append(group)
            if len(chosen) == self._groups_per_step:
                return chosen
        self._is_stuck = True
        return None

    def _first_complete(self, step: int) -> list[Group] | None:
        due = self._bound.due(self._num_open, step) if self._bound else []
        if due and due[-1][1] > self._groups_per_step:
            raise BrokenInvariant(f"{due[-1][1]} groups are too old for any step after {nth(step)}: more than it takes")
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
