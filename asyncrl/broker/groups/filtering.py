"""
Groups that teach nothing are not trained on: all values of such a group are equal, so every advantage in it is zero.

    complete ─▶ values differ: kept          equal: dropped with the reason `ZERO_VARIANCE`, and one new group admitted

Values are rewards, or a metric of the verdicts. Which groups it meets does not depend on the broker's lives: one that
was complete when a broker died is looked at again by the next one, with the same outcome.
"""

from collections import Counter, deque
from collections.abc import Iterator

from asyncrl.broker.groups.group import Group, Slot
from asyncrl.config.sections import Schedule
from asyncrl.errors import RunFailed

ZERO_VARIANCE = "zero_variance"
LEAST_PATIENCE = 256
WINDOWS_OF_PATIENCE = 16


class GroupFilter:
    """DAPO's dynamic sampling. With ``schedule.filter = "none"`` nothing is ever filtered."""

    def __init__(self, schedule: Schedule) -> None:
        self._is_on = schedule.filter == "zero_variance"
        self._metric = schedule.filter_metric
        self._groups_per_step = schedule.groups_per_step
        self._patience = schedule.filter_patience or max(LEAST_PATIENCE, WINDOWS_OF_PATIENCE * schedule.window)
        self._in_a_row = 0
        """Filtered since one was kept, in this life of the broker."""
        self._unseen: deque[Group] = deque()
        self._num_by_step: Counter[int] = Counter()
        """Groups filtered, by the step that was to be formed next."""

    def completed(self, group: Group) -> None:
        """Every trajectory of a group has a reward: it is to be looked at."""
        if self._is_on:
            self._unseen.append(group)

    def filtered(self) -> Iterator[Group]:
        """
        Those of the groups completed lately that are to be dropped.

        Raises:
            RunFailed: A verdict lacks the metric.
        """
        while self._unseen:
            group = self._unseen.popleft()
            if len({self._value(slot) for slot in group.sampled}) == 1:
                yield group
            else:
                self._in_a_row = 0

    def dropped(self, reason: str, step: int) -> None:
        """A group was dropped for whatever reason while ``step`` was to be formed next, now or before a restart."""
        if reason == ZERO_VARIANCE:
            self._num_by_step[step] += 1

    def check_patience(self, group: Group) -> None:
        """
        One more was filtered.

        Raises:
            RunFailed: Nothing else has happened for too long.
        """
        self._in_a_row += 1
        if self._in_a_row >= self._patience:
            value, what = self._value(group.slots[0]), self._metric or "reward"
            raise RunFailed(
                f"{self._in_a_row} groups in a row were filtered and none was kept: all trajectories of each had the "
                f"same {what} (those of the last group {value:g}), so there is nothing to learn from them. The prompts "
                f"are all too easy or all too hard for this policy: use others, or set schedule.filter to 'none'"
            )

    def metrics(self, step: int) -> dict[str, float]:
        """For the line of ``step``: groups filtered since the batch before was formed. Empty without a filter."""
        if not self._is_on:
            return {}
        num = self._num_by_step[step]
        return {"filtered_groups": float(num), "filtered_share": num / (num + self._groups_per_step)}

    def forget(self, step: int) -> None:
        """The lines of the steps up to ``step`` are written."""
        for number in [number for number in self._num_by_step if number <= step]:
            del self._num_by_step[number]

    def _value(self, slot: Slot) -> float:
        if not self._metric:
            return slot.reward
        try:
            return slot.metrics[self._metric]
        except KeyError:
            there = ", ".join(sorted(slot.metrics)) or "none at all"
            raise RunFailed(
                f"schedule.filter_metric is {self._metric!r}, but the verdict on {slot.unit} has no such metric (it "
                f"has: {there}); let reward.function return it, or leave filter_metric empty for the reward"
            ) from None
