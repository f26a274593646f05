"""
Rule for what is on disk of an unfinished trajectory: the next lease continues it, or a record says why it does not.

    Progressed ─▶ Reissued ─▶ Lease(resume_from)
                     └ failed, spool_away, environment_lost; Restarted, Refused: Lease without it

The rule is written from the specification, and looks at records and leases only.
"""

from collections.abc import Callable

from asyncrl.broker.ledger.records import AnyRecord, Progressed, Refused, Reissued, Restarted, Result
from asyncrl.messages.rollout import Lease
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import TrajectorySummary, Unit

LOSSES = frozenset({"failed", "spool_away", "environment_lost"})
"""Causes of `Reissued` after which a trajectory begins at its prompt."""


class Resumption:
    """What each lease of a training trajectory continues, over all restarts of the broker."""

    def __init__(self, require: Callable[[bool, str], None]) -> None:
        self._require = require
        self._progress: dict[Unit, Progressed] = {}
        """Newest part on disk that is not lost."""
        self._summaries: dict[SpoolRef, TrajectorySummary] = {}
        self._cited: dict[tuple[Unit, int], SpoolRef | None] = {}
        """Part that a lease of this term names, until the ledger has a record of the lease."""
        self._continues: dict[tuple[Unit, int], SpoolRef] = {}
        """Part that a lease names, until its node says that it begins anew."""
        self.num_resumed = 0
        self.num_started_over = 0

    def granted(self, lease: Lease) -> None:
        if lease.split != "train":
            return
        refs = {point.index: point.ref for point in lease.resume_from}
        for index in lease.indices:
            unit = Unit(lease.group_id, index)
            self._cited[unit, lease.lease_id] = refs.get(index)
            if index in refs:
                self._continues[unit, lease.lease_id] = refs[index]

    def started_over(self, unit: Unit, lease_id: int) -> None:
        """The node of a lease says that it begins anew, in a message that its result may overtake."""
        self._continues.pop((unit, lease_id), None)

    def broker_restarted(self) -> None:
        """Records may have been lost with the broker: what its last leases named cannot be checked any more."""
        self._cited.clear()

    def add(self, record: AnyRecord) -> None:
        """Check a durable record, in the order of the ledger."""
        match record:
            case Progressed(unit=unit) | Result(unit=unit) if unit.split == "train":
                self._check_lease(unit, record.lease_id)
                self._check_continued(unit, record.lease_id, record.summary)
                if isinstance(record, Progressed):
                    self._progress[unit] = record
                    self._summaries[record.ref] = record.summary
            case Reissued(unit=unit) if unit.split == "train":
                self._check_lease(unit, record.lease_id)
                self.num_started_over += record.cause == "environment_lost"
                if record.cause in LOSSES:
                    self._progress.pop(unit, None)
            case Refused(unit=unit):
                self._progress.pop(unit, None)
            case Restarted(group_id=group_id):
                for unit in [unit for unit in self._progress if unit.group_id == group_id]:
                    del self._progress[unit]
            case _:
                pass

    def _check_lease(self, unit: Unit, lease_id: int) -> None:
        """Check what a lease continues, at the first record of it."""
        if (unit, lease_id) not in self._cited:
            return
        cited, progress = self._cited.pop((unit, lease_id)), self._progress.get(unit)
        expected = progress.ref if progress else None
        self._require(cited == expected, f"lease {lease_id} continues {unit} from {cited}; on disk is {expected}")
        self.num_resumed += cited is not None

    def _check_continued(self, unit: Unit, lease_id: int, summary: TrajectorySummary) -> None:
        """Tokens that were sampled are kept: the first one has the version that wrote it."""
        ref = self._continues.get((unit, lease_id))
        if ref is None or (before := self._summaries.get(ref)) is None:
            return
        is_longer = summary.num_tokens >= before.num_tokens and summary.num_turns >= before.num_turns
        is_same = is_longer and summary.oldest_version <= before.oldest_version
        self._require(
            is_same, f"lease {lease_id} of {unit} has {summary}: it does not continue {before}, and says no why"
        )
