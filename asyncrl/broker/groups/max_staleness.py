"""
How old a group may be when a step trains on it, in versions (L = ``max_staleness``), and how that is kept.

    P groups per step, T steps per publish: step s trains version s // T, so a group admitted while version v was live
    may go into the steps up to its last one, (v + L + 1) T - 1

A group is leased only to nodes that decode with the version that was live when it was admitted, or a newer one. So that
version is a lower bound for every token of it, and ``s // T - v <= L`` bounds the staleness of each of them.

What is promised, whatever happens:
    wait_keeps_max_lag      no trained token is older than L versions, and nothing is thrown away for its age
    reissue_keeps_max_lag   no trained token is older than L versions, and what is thrown away is counted by length
    train_counts_what_is_over_max_lag      nothing waits, nothing is thrown away, and each older trajectory is counted

Why ``wait`` need not wait for more than it does. Let N(d) be the number of groups, not consumed yet, whose last step is
d or an earlier one, and s the step formed next. All find a place in time if N(d) <= P (d - s + 1) for every d >= s.
    At first there are none.
    After step s is formed: the later steps up to d have P (d - s) places, so at least N(d) - P (d - s) of those groups
    have to go into step s, whichever are complete first. This is what `due` says, and it is at most P.
    After an admission at version v: the P (s - v T) groups of the steps from v T on are consumed and not retired, so at
    most W - P (s - v T) are not consumed, W being the window. For every d that the new group counts for,
    d >= (v + L + 1) T - 1 and P (d - s + 1) >= (L + 1) P T - P (s - v T). So it holds if W <= (L + 1) P T.
That is the condition the config is checked for. Where it does not hold, W groups admitted at version 0 are more than
the steps up to their last one consume.
"""

from collections.abc import Iterable, Mapping

from asyncrl.broker.groups.group import Group


class StalenessBound:
    """The arithmetic of ``max_staleness``."""

    def __init__(self, max_staleness: int, groups_per_step: int, steps_per_publish: int) -> None:
        self._max_staleness = max_staleness
        self._groups_per_step = groups_per_step
        self._steps_per_publish = steps_per_publish

    def last_step(self, min_version: int) -> int:
        """The last step that may consume a group admitted at this version."""
        return (min_version + self._max_staleness + 1) * self._steps_per_publish - 1

    def oldest_version(self, step: int) -> int:
        """``step`` may consume groups admitted at this version or a newer one; below 0 for all there are."""
        return step // self._steps_per_publish - self._max_staleness

    def due(self, num_open: Mapping[int, int], step: int) -> list[tuple[int, int]]:
        """
        What has to go into this very step, so that all others can go into a later one.

        ``(version, number)``: at least so many of the groups admitted at this version or before. Ascending in both.

        Args:
            num_open: Groups not consumed yet, by the version they were admitted at.
            step: Formed next.
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
    Under ``reissue``: which groups have become too old for the next step, and have to begin anew.

    Not before a version is live that makes them young enough: what is sampled with an older one would be too old again.
    So each group begins anew at most once a version, and a step is always formed of what is left or new.
    """

    def __init__(self, bound: StalenessBound) -> None:
        self._bound = bound
        self._removed_below = 0
        """Groups admitted at a version below this one have begun anew; no more of them are admitted."""

    def overdue(self, groups: Iterable[Group], step: int, live_version: int) -> list[Group]:
        """
        Those of ``groups`` to begin anew. Asked again before anything changed, there are none.

        Args:
            groups: All that are not consumed yet; looked at only if there may be some.
            step: Formed next.
            live_version: What they would be sampled with.
        """
        oldest = self._bound.oldest_version(step)
        if oldest <= self._removed_below or live_version < oldest:
            return []
        self._removed_below = oldest
        return [group for group in groups if group.min_version < oldest]

    def may_form(self, step: int, live_version: int) -> bool:
        """Are there none among the open groups that are too old for ``step``?"""
        return live_version >= self._bound.oldest_version(step)
