"""
Policy versions of a run's steps, and the staleness that each group was promised, as its ledger tells them.

The broker's own rules are not reused: an audit must not repeat their mistakes.
"""

from bisect import bisect_right
from collections.abc import Mapping
from operator import itemgetter

from asyncrl.broker.ledger.records import VersionLive
from asyncrl.config.live import Value, schedule_with
from asyncrl.config.sections.schedule import Schedule

# ── trained versions ──────────────────────────────────────────────────────────────────────────
# Policy version that each step trains, computed from the versions that went live.
#
#     T = 2     step       0   1 │ 2   3 │ 4 │      ... the run of 5 steps is complete, and is extended
#               version    0   0 │ 1   1 │ 2 │ 3    version 3 contains 5 steps
#               step                         │ 5 │ 6   7
#               version                      │ 3 │ 4   4
#
# A version is made after every T-th step, and after the last step of a run. A version whose transfers failed is
# skipped: it never went live, but the next one has the number after it.


class TrainedVersions:
    """Versions by step; `add` the versions that went live, in order. Version 0 is the base model."""

    def __init__(self, steps_per_publish: int) -> None:
        self._steps_per_publish = steps_per_publish
        self._known: list[tuple[int, int]] = [(0, 0)]
        """First step trained on, and version; ascending in both."""
        self.live: set[int] = set()

    @property
    def live_version(self) -> int:
        """Newest live version; -1 if there is none."""
        return self._known[-1][1] if self.live else -1

    def of_step(self, step: int) -> int:
        """Version of the weights that ``step`` trains, which contain every step before it."""
        first, version = self._known[bisect_right(self._known, step, key=itemgetter(0)) - 1]
        return version + step // self._steps_per_publish - first // self._steps_per_publish

    def problem(self, record: VersionLive) -> str:
        """Reason for which this version cannot be the next live one; empty if it can."""
        version, next_step, before = record.policy_version, record.next_step, self.live_version
        if version <= before:
            return f"version {version} went live after version {before}: expected a newer one"
        if next_step < self._known[-1][0]:
            return f"version {version} contains {next_step} steps, but the version before contains {self._known[-1][0]}"
        expected = self.of_step(next_step)
        # The last version of a run may contain fewer than T steps more than the one before.
        if version not in (expected, expected + (self._steps_per_publish > 1)):
            return f"version {version} contains {next_step} steps: expected version {expected}"
        return ""

    def add(self, record: VersionLive) -> None:
        """Note a live version, unless it has a `problem`."""
        if not self.problem(record):
            self.live.add(record.policy_version)
            self._known.append((record.next_step, record.policy_version))


# ── staleness bound ───────────────────────────────────────────────────────────────────────────
# Bound on the staleness of a trained trajectory that a schedule promises, in policy versions.
#
#     P groups per step, T steps per publish, W groups in the window, R slots of the line that a step takes groups from
#
#     ``order = "fifo"``                          ceil(W / (P T)) - 1, which is S if S is whole
#     ``order = "windowed"``                      floor((W + R - 2) / (P T)), which is at R = 1 the same
#     ``max_staleness = L``, wait or reissue      L
#     ``max_staleness = L``, train or mask        no further bound: older trajectories are trained on and counted
#     ``order = "completion"`` alone              none
#
# A schedule whose staleness, and with it W, is set while the run goes on promises each group the bound of the
# schedule under which it was admitted: the proof counts the groups that are open then. A group that is restarted may
# find more open than W holds by now, so it is promised the largest bound of all schedules so far. R never changes.
#
# Of two bounds the smaller holds. Partial rollout changes neither: a trajectory's oldest token is as new as the
# version that was live when its group was admitted or restarted.
#
# Proof for ``fifo`` and ``windowed``: let version v be live when a group is admitted, and step s train on it. The s P
# groups of the steps before s are
#   - P T v at most, whose steps made version v: all others are open when the group is admitted, or admitted later;
#   - W - 1 at most, which are open together with the group when it is admitted;
#   - R - 1 at most, which are admitted later and pass it (asyncrl/broker/groups/batches.py).
# So s <= v T + (W + R - 2) / P, and step s trains version floor(s / T), which is at most v + (W + R - 2) / (P T).


def most_versions(schedule: Schedule) -> int | None:
    """Largest staleness at which a trajectory may be trained on; None if the schedule promises no bound."""
    bounds = schedule.most_versions_by_order, schedule.kept_max_staleness
    return min((bound for bound in bounds if bound is not None), default=None)


class PromisedBounds:
    """Bound that each group was promised, under a schedule that may be changed."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        """Schedule by now."""
        self._bounds = [most_versions(schedule)]
        """Bounds of all schedules so far."""
        self._of_group: dict[int, int | None] = {}

    def changed(self, values: Mapping[str, Value]) -> None:
        self.schedule = schedule_with(self.schedule, values)
        self._bounds.append(most_versions(self.schedule))

    def admitted(self, group_id: int) -> None:
        self._of_group[group_id] = self._bounds[-1]

    def restarted(self, group_id: int) -> None:
        self._of_group[group_id] = None if None in self._bounds else max(filter(None, self._bounds), default=0)

    def of(self, group_id: int) -> int | None:
        """Most versions between a token of the group and the version that trains on it; None without a bound."""
        return self._of_group.get(group_id, self._bounds[-1])
