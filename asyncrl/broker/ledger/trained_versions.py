"""
Policy version that each step trains, computed from the versions that went live.

    T = 2     step       0   1 │ 2   3 │ 4 │      ... the run of 5 steps is complete, and is extended
              version    0   0 │ 1   1 │ 2 │ 3    version 3 contains 5 steps
              step                         │ 5 │ 6   7
              version                      │ 3 │ 4   4

A version is made after every T-th step, and after the last step of a run. A version whose transfers failed is skipped:
it never went live, but the next one has the number after it.
"""

from bisect import bisect_right
from operator import itemgetter

from asyncrl.broker.ledger.records import VersionLive


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
