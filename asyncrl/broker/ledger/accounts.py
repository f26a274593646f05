"""
What a ledger's records come to, in one pass over them: sums and sets, no judgement.

    Admitted ─▶ open ─┬─▶ Taken ─▶ VersionLive with a later next_step ─▶ retired
                      ├─▶ Restarted: open still, with nothing sampled yet
                      └─▶ Dropped ──────────────────────────────────────▶ retired

Nothing here is taken from the broker's own rules: what proves them must not repeat their mistakes. So records that a
ledger would refuse (a second result, a group dropped twice) are counted here like any other.
"""

from collections import Counter, defaultdict

from asyncrl.broker.ledger.records import (
    Admitted,
    AnyRecord,
    Committed,
    Dropped,
    Duplicate,
    FailedAttempt,
    Reissued,
    Restarted,
    Result,
    Rewarded,
    Taken,
    VersionLive,
)
from asyncrl.messages import TrajectorySummary, Unit


class Accounts:
    """Apply every record in order with `add`; then read."""

    def __init__(self) -> None:
        self.admitted: Counter[int] = Counter()
        """How often each group was admitted; so too the other counters."""
        self.results: Counter[Unit] = Counter()
        self.verdicts: Counter[Unit] = Counter()
        self.summaries: dict[Unit, TrajectorySummary] = {}
        """Of the first result of each unit; so too what else is kept by unit: of units that began anew, since then."""
        self.batches: dict[int, list[int]] = {}
        """Groups by step, as it was last taken."""
        self.steps_of: defaultdict[int, list[int]] = defaultdict(list)
        """Every step a group was taken for, by group; a step taken twice is there twice."""
        self.committed_step = -1
        self.drops: defaultdict[int, list[str]] = defaultdict(list)
        """Reasons, by group."""
        self.restarts: Counter[int] = Counter()
        """How often each group began anew."""
        self.wrong_restarts: list[int] = []
        """Groups that began anew when they were not open."""
        self.restarted_lengths: list[int] = []
        """Completion tokens of each trajectory that was thrown away so."""
        self.reissued: Counter[str] = Counter()
        self.num_duplicates = 0
        self.failed_attempts: Counter[str] = Counter()
        self.num_dead_letters = 0
        self.thrown_away: Counter[str] = Counter(dropped=0, duplicates=0, reissued=0, restarted=0)
        """Completion tokens."""
        self.peak_open = 0
        self._open: set[int] = set()
        self._units_of: defaultdict[int, set[Unit]] = defaultdict(set)
        """Of groups neither trained nor dropped: what has a result or a verdict."""
        self._unretired: dict[int, list[int]] = {}
        """Groups that were taken and are open until the weights they made are live, by step."""

    def add(self, record: AnyRecord) -> None:
        """One record more."""
        match record:
            case Admitted(group_id=group_id):
                self.admitted[group_id] += 1
                self._open.add(group_id)
                self.peak_open = max(self.peak_open, len(self._open))
            case Result(unit=unit, summary=summary):
                self.results[unit] += 1
                self.summaries.setdefault(unit, summary)
                self._seen(unit)
            case Rewarded(unit=unit):
                self.verdicts[unit] += 1
                self._seen(unit)
            case Taken(step=step, group_ids=group_ids):
                self._take(step, group_ids)
            case Committed(step=step):
                self.committed_step = max(self.committed_step, step)
            case VersionLive():
                self._live(record)
            case Dropped(group_id=group_id, reason=reason):
                self.drops[group_id].append(reason)
                self.thrown_away["dropped"] += record.num_tokens
                self._open.discard(group_id)
                self._units_of.pop(group_id, None)
            case Restarted():
                self._restart(record)
            case Duplicate():
                self.num_duplicates += 1
                self.thrown_away["duplicates"] += record.num_tokens
            case Reissued():
                self.reissued[record.cause] += 1
                self.thrown_away["reissued"] += record.num_tokens
            case FailedAttempt():
                self.failed_attempts[record.stage] += 1
                self.num_dead_letters += record.is_final
            case _:
                pass  # Measured, NodeEvent: nothing to add up

    def summaries_of(self, group_id: int, group_size: int) -> list[TrajectorySummary]:
        """Of those trajectories of a training group that have a result, by index."""
        units = (Unit(group_id, index) for index in range(group_size))
        return [self.summaries[unit] for unit in units if unit in self.summaries]

    def staleness(self, group_size: int, steps_per_publish: int) -> Counter[int]:
        """Trained trajectories by staleness: the version their step trained, minus the oldest that wrote them."""
        staleness: Counter[int] = Counter()
        for step, group_ids in self.batches.items():
            for group_id in group_ids:
                for summary in self.summaries_of(group_id, group_size):
                    staleness[step // steps_per_publish - summary.oldest_version] += 1
        return staleness

    def _seen(self, unit: Unit) -> None:
        if unit.split == "train":
            self._units_of[unit.group_id].add(unit)

    def _restart(self, record: Restarted) -> None:
        """What its units had does not count."""
        group_id = record.group_id
        if group_id not in self._open or group_id in self.steps_of:
            self.wrong_restarts.append(group_id)
        self.restarts[group_id] += 1
        self.restarted_lengths += record.lengths
        self.thrown_away["restarted"] += sum(record.lengths)
        for unit in self._units_of.pop(group_id, ()):
            self.results.pop(unit, None)
            self.verdicts.pop(unit, None)
            self.summaries.pop(unit, None)

    def _take(self, step: int, group_ids: list[int]) -> None:
        self.batches[step] = self._unretired[step] = group_ids
        for group_id in group_ids:
            self.steps_of[group_id].append(step)
            self._units_of.pop(group_id, None)

    def _live(self, record: VersionLive) -> None:
        for step in [step for step in self._unretired if step < record.next_step]:
            self._open.difference_update(self._unretired.pop(step))
