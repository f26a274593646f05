"""
Bound on the age of a group when a step trains on it, in versions (L = ``schedule.max_staleness``).

    P groups per step, T steps per publish: step s trains version s // T, so a group admitted while version v was live
    may go into the steps up to its last one, (v + L + 1) T - 1

A group is leased only to nodes that decode with the version that was live when it was admitted, or a newer one. So that
version is a lower bound for each of its tokens, and ``s // T - v <= L`` bounds their staleness.

Guarantees, each with a test of this name:
    wait_keeps_max_staleness      no trained token is older than L versions, and no group is discarded for its age
    reissue_keeps_max_staleness   no trained token is older than L versions, and discarded tokens are counted by length
    train_counts_what_is_over_max_staleness      no step waits, no group is discarded, older trajectories are counted;
                                                 so with ``mask``, where the trainer leaves out their older tokens

Proof that with ``wait`` it suffices to wait for the `due` groups. Let N(d) be the number of groups not consumed yet
whose last step is d or an earlier one, and s the step formed next. All find a place in time if N(d) <= P (d - s + 1)
for every d >= s.
    At first there are none.
    After step s is formed: the later steps up to d have P (d - s) places, so at least N(d) - P (d - s) of those groups
    have to go into step s, whichever are complete first. `due` returns this number; it is at most P.
    After an admission at version v: the P (s - v T) groups of the steps from v T on are consumed and not retired, so at
    most W - P (s - v T) are not consumed, W being the window. The new group counts in N(d) for d >= (v + L + 1) T - 1
    only, and there P (d - s + 1) >= (L + 1) P T - P (s - v T). So N(d) <= P (d - s + 1) if W <= (L + 1) P T.
The config is checked for W <= (L + 1) P T. Without it, W groups admitted at version 0 could not all be consumed by
their last step.
"""

from collections.abc import Iterable, Mapping

from asyncrl.broker.groups.group import Group


class StalenessBound:
    """Steps and versions that ``max_staleness`` allows."""

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
    With ``reissue``: groups that are too old for the next step, and have to restart.

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
