"""
Groups that leave a run: those without a learning signal, how many may be dropped in a row, and segments nobody needs.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator

from asyncrl.broker.groups.group import Group, Slot
from asyncrl.config.sections.schedule import Schedule
from asyncrl.errors import RunFailed
from asyncrl.messages.trajectory import SEAT_METRICS

# ── zero variance ─────────────────────────────────────────────────────────────────────────────
# Filter for groups without a learning signal: if all values of a group are equal, every advantage in it is zero.
#
#   complete ─▶ values differ: kept          equal: dropped with the reason `ZERO_VARIANCE`, and one new group admitted
#
# Values are rewards, those of each seat if an episode has several, or a metric of the verifier. Filtering is
# deterministic across restarts: a group that was complete when a broker died is tested again by the next one, with the
# same outcome.


ZERO_VARIANCE = "zero_variance"
LEAST_PATIENCE = 256
WINDOWS_OF_PATIENCE = 16


class GroupFilter:
    """
    Dynamic sampling of DAPO (arXiv:2503.14476, sec. 3.2). With ``schedule.filter = "none"`` no group is filtered.

    ``num_seats`` are those of an episode: rewards of several are compared seat by seat.
    """

    def __init__(self, schedule: Schedule, num_seats: int = 1) -> None:
        self._is_on = schedule.filter == "zero_variance"
        self._metric = schedule.filter_metric
        self._seats = SEAT_METRICS[:num_seats] if num_seats > 1 and not self._metric else ()
        self._groups_per_step = schedule.groups_per_step
        self._patience = schedule.filter_patience
        self.window = schedule.window
        self._in_a_row = 0
        """Groups filtered since one was kept, in this life of the broker."""
        self.untested: deque[Group] = deque()
        """Complete groups for `filtered` to test."""
        self._num_by_step: Counter[int] = Counter()

    def completed(self, group: Group) -> None:
        if self._is_on:
            self.untested.append(group)

    def filtered(self) -> Iterator[Group]:
        """Test the queued groups and yield those to drop; raises `RunFailed` if a verdict lacks the metric."""
        while self.untested:
            group = self.untested.popleft()
            if self._is_even(group):
                yield group
            else:
                self._in_a_row = 0

    def dropped(self, reason: str, step: int) -> None:
        """Count a dropped group for the metrics of ``step``, the one formed next. Other reasons are ignored."""
        if reason == ZERO_VARIANCE:
            self._num_by_step[step] += 1

    def check_patience(self, group: Group) -> None:
        """Count a filtered group; raises `RunFailed` after ``schedule.filter_patience`` in a row."""
        self._in_a_row += 1
        if self._in_a_row >= (self._patience or max(LEAST_PATIENCE, WINDOWS_OF_PATIENCE * self.window)):
            value, name = self._value(group.slots[0]), self._metric or "reward"
            raise RunFailed(
                f"{self._in_a_row} groups in a row were filtered and none was kept: all trajectories of each had the "
                f"same {name} (those of the last group {value:g}), so there is nothing to learn from them. The prompts "
                f"are all too easy or all too hard for this policy: use others, or set schedule.filter to 'none'"
            )

    def metrics(self, step: int) -> dict[str, float]:
        """Metrics of ``step``: groups filtered since the previous batch was formed. Empty without a filter."""
        if not self._is_on:
            return {}
        num = self._num_by_step[step]
        return {"filtered_groups": float(num), "filtered_share": num / (num + self._groups_per_step)}

    def forget(self, step: int) -> None:
        for number in [number for number in self._num_by_step if number <= step]:
            del self._num_by_step[number]

    def _is_even(self, group: Group) -> bool:
        """True if the values are equal; of several seats those of each, because their mean may always be the same."""
        if not self._seats:
            return len({self._value(slot) for slot in group.sampled}) == 1
        return all(
            len({slot.metrics[name] for slot in group.sampled if name in slot.metrics}) <= 1 for name in self._seats
        )

    def _value(self, slot: Slot) -> float:
        if not self._metric:
            return slot.reward
        try:
            return slot.metrics[self._metric]
        except KeyError:
            there = ", ".join(sorted(slot.metrics)) or "none at all"
            raise RunFailed(
                f"schedule.filter_metric is {self._metric!r}, but the verdict on trajectory {slot.unit.index} of group "
                f"{slot.unit.group_id} has no such metric (it has: {there}); let reward.function return it, or leave "
                f"filter_metric empty for the reward"
            ) from None


# ── drop limit ────────────────────────────────────────────────────────────────────────────────
# Limit on groups dropped in a row, and on groups that the trainer leaves out in a row.
#
# Each dropped group is replaced by another one, so a run in which all fail (every prompt too long, a reward function
# that always raises) would never end; and one whose trainer refuses every group would end without having trained.

LEAST_IN_A_ROW = 32
LEAST_OVERLONG, WINDOWS_OVERLONG = 256, 16
"""Least number, and number in windows, of over-long prompts in a row that end a run: a sorted dataset has many."""

OVERLONG = "overlong_prompt"
"""Reason for dropping a group with too many prompt tokens, with ``data.filter_overlong_prompts``."""


class DropLimit:
    """Counts drops since a group last became complete. One short-lived cause may fail a whole ``window`` of groups."""

    def __init__(self, window: int) -> None:
        self.window = window
        self._in_a_row = self._untrained_in_a_row = 0
        self._overlong_in_a_row = 0

    def completed(self) -> None:
        self._in_a_row = self._overlong_in_a_row = 0

    def dropped(self, reason: str) -> None:
        """Count a dropped group; raises `RunFailed` with this reason if there are too many in a row."""
        if reason == OVERLONG:
            self._overlong_in_a_row += 1
            if self._overlong_in_a_row > max(LEAST_OVERLONG, WINDOWS_OVERLONG * self.window):
                raise RunFailed(
                    f"{self._overlong_in_a_row} prompts were filtered out because they have more than "
                    f"data.max_prompt_tokens tokens, and no group became complete meanwhile; raise it, or set "
                    f"data.truncation in place of data.filter_overlong_prompts"
                )
            return
        self._in_a_row += 1
        if self._in_a_row > self._most_in_a_row:
            raise RunFailed(
                f"{self._in_a_row} groups in a row were dropped and none became complete; the last one because of "
                f"{reason}"
            )

    def trained(self) -> None:
        self._untrained_in_a_row = 0

    def untrained(self, reason: str) -> None:
        """
        Count a group that the trainer left out of a step; raises `RunFailed` with the reason after too many in a row.
        """
        self._untrained_in_a_row += 1
        if self._untrained_in_a_row > self._most_in_a_row:
            raise RunFailed(
                f"the trainer left out {self._untrained_in_a_row} groups in a row and trained on none; the last one "
                f"because of {reason}"
            )

    @property
    def _most_in_a_row(self) -> int:
        return max(LEAST_IN_A_ROW, 2 * self.window)


# ── trimming ──────────────────────────────────────────────────────────────────────────────────
# Segments of each spool that are still needed, once groups are done with. Each spool numbers its own.


def first_needed(done: Iterable[Group], needed: Iterable[Group]) -> dict[str, int]:
    """
    First segment that each spool must keep, by the spool's name.

    It is the oldest one with a payload of the ``needed`` groups; without any, the newest one with a payload of those
    that are ``done``, because its number must not be used again.
    """
    newest_done = {spool: max(segments) for spool, segments in _segments(done).items()}
    oldest_needed = {spool: min(segments) for spool, segments in _segments(needed).items()}
    return newest_done | oldest_needed


def _segments(groups: Iterable[Group]) -> dict[str, set[int]]:
    """Segments that hold payloads of these groups, by spool."""
    found: dict[str, set[int]] = {}
    for ref in (slot.ref for group in groups for slot in group.slots if slot.ref):
        found.setdefault(ref.spool, set()).add(ref.segment)
    return found
