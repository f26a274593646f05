"""
State of a run after any number of its ledger's records: what was admitted, stored, rewarded, trained and
committed.

Nothing is judged here; `record_rules` judges each record by the state before it, and audits compare the state at the
end with the other files of the run. The broker's own books are not reused: an audit must not repeat their mistakes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from asyncrl.broker.ledger.records import (
    Admitted,
    AnyRecord,
    Committed,
    Dropped,
    FailedAttempt,
    LeftOut,
    Measured,
    Progressed,
    Refused,
    Reissued,
    Restarted,
    Result,
    Rewarded,
    SettingsSet,
    Started,
    Taken,
    Untrained,
    VersionLive,
    Written,
)
from asyncrl.broker.ledger.staleness_bound import BoundBook
from asyncrl.broker.ledger.trained_versions import TrainedVersions
from asyncrl.config.sections.schedule import Schedule
from asyncrl.messages.trajectory import Unit

METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
"""`Written.file` of these files."""


class TrainedTrajectory(NamedTuple):
    """A trajectory in the batch of a step."""

    step: int
    result: Result
    rewarded: Rewarded | None


class RecordBook:
    """Apply every record in order with `add`. ``num_greedy`` trajectories of each group are graded, not trained on."""

    def __init__(self, schedule: Schedule, num_greedy: int = 0) -> None:
        self._num_rewarded: Counter[int] = Counter()
        """Rewards of each training group in `rewards`."""
        self.left_out: dict[int, set[Unit]] = {}
        """Units that each training group goes on without."""
        self._group_size = schedule.group_size
        self._num_greedy = num_greedy
        self.num_records = 0
        self.admitted: dict[int, Admitted] = {}
        self.min_versions: dict[int, int] = {}
        """Version that was live when each group was admitted, or last restarted."""
        self.restarts: Counter[int] = Counter()
        self.results: dict[Unit, Result] = {}
        """Result of each unit since its group was admitted or restarted; none once it was refused or left out."""
        self.rewards: dict[Unit, Rewarded] = {}
        self.correct: dict[int, float] = {}
        """Mean ``correct`` of each training group that was complete once, the highest if it was complete again."""
        self.progress: dict[Unit, Progressed] = {}
        """Last stored prefix of each unit without a result."""
        self.steps: dict[int, list[int]] = {}
        """Groups of each step."""
        self.next_step = 0
        """Number of steps that got a batch, if none was skipped."""
        self.ended: set[int] = set()
        """Training groups that were taken or dropped."""
        self.dropped: set[int] = set()
        self.commits: list[Committed] = []
        self.versions = TrainedVersions(schedule.steps_per_publish)
        self.measured: list[Measured] = []
        self.bounds = BoundBook(schedule)
        self.started: Started | None = None
        """Last start of a broker."""
        self.written: dict[tuple[str, int], str] = {}
        """Digest of each file, and of each line, by its file and step."""

    @property
    def committed_step(self) -> int:
        """Last step that a checkpoint contains; -1 if none does."""
        return max((record.step for record in self.commits), default=-1)

    @property
    def first_needed_step(self) -> int:
        """First step whose payloads the spool must still hold: those before it are in two checkpoints."""
        return sorted((-1, -1, *{record.step for record in self.commits}))[-2] + 1

    def units(self, group_id: int) -> list[Unit]:
        """Every unit of a training group that is not left out, greedy ones included."""
        every = (Unit(group_id, index) for index in range(self._group_size + self._num_greedy))
        left_out = self.left_out.get(group_id, ())
        return [unit for unit in every if unit not in left_out]

    def batch(self, step: int) -> list[TrainedTrajectory]:
        """Trajectories in the batch of a step that have a result, greedy ones included."""
        units = (unit for group_id in self.steps.get(step, ()) for unit in self.units(group_id))
        return [TrainedTrajectory(step, self.results[u], self.rewards.get(u)) for u in units if u in self.results]

    def sampled(self, step: int) -> list[TrainedTrajectory]:
        """Trajectories of a step that are trained on, without the greedy ones."""
        return [item for item in self.batch(step) if item.result.unit.index < self._group_size]

    def stored(self) -> Iterator[Result | Progressed]:
        """Records that name a payload."""
        yield from self.results.values()
        yield from self.progress.values()

    def needed(self) -> Iterator[Result | Progressed]:
        """Records whose payloads a resumed run would read: of open groups, and of steps not in two checkpoints."""
        first = self.first_needed_step
        kept = {group_id for step, groups in self.steps.items() if step >= first for group_id in groups}
        for record in self.stored():
            group_id = record.unit.group_id
            if record.unit.split == "train" and (group_id in kept or group_id not in self.ended):
                yield record

    def add(self, record: AnyRecord) -> None:
        self.num_records += 1
        match record:
            case Admitted(group_id=group_id):
                self.admitted.setdefault(group_id, record)
                self.min_versions[group_id] = record.policy_version
                self.bounds.admitted(group_id)
            case Restarted(group_id=group_id):
                self._restart(record)
            case Progressed() | Result() | Rewarded() | FailedAttempt() | Refused() | Reissued():
                self._add_to_unit(record)
            case LeftOut(unit=unit):
                self._forget([unit])
                self.left_out.setdefault(unit.group_id, set()).add(unit)
                self._settled(unit.group_id)
            case Untrained(group_id=group_id):
                self._forget(self.units(group_id))
            case Taken(step=step, group_ids=group_ids):
                self.steps[step] = group_ids
                self.next_step = max(self.next_step, step + 1)
                self.ended.update(group_ids)
            case Dropped(group_id=group_id):
                self.dropped.add(group_id)
                self.ended.add(group_id)
            case Committed():
                self.commits.append(record)
            case VersionLive():
                self.versions.add(record)
            case Measured():
                self.measured.append(record)
            case SettingsSet(values=values):
                self.bounds.changed(values)
            case _:
                self._add_witness(record)  # The others change no state.

    def _add_witness(self, record: AnyRecord) -> None:
        match record:
            case Started():
                self.started = record
                self.written.pop((SUMMARY, -1), None)  # That of an earlier end, which this broker has removed.
            case Written(file=file, step=step):
                self.written[file, step] = record.sha256

    def _add_to_unit(self, record: Progressed | Result | Rewarded | FailedAttempt | Refused | Reissued) -> None:
        unit = record.unit
        match record:
            case Progressed():
                self.progress[unit] = record
            case Result():
                self.results.setdefault(unit, record)
                self.progress.pop(unit, None)
            case Rewarded():
                self._reward(record)
            case Refused() | FailedAttempt(stage="payload"):
                self._forget([unit])
            case FailedAttempt(stage="rollout" | "environment") | Reissued(loses_progress=True):
                self.progress.pop(unit, None)

    def _reward(self, record: Rewarded) -> None:
        unit = record.unit
        if unit in self.rewards:
            return
        self.rewards[unit] = record
        if unit.split == "train":
            self._num_rewarded[unit.group_id] += 1
            self._settled(unit.group_id)

    def _settled(self, group_id: int) -> None:
        """A unit was rewarded or left out: if it was the last one, the group is complete."""
        units = self.units(group_id)
        if self._num_rewarded[group_id] == len(units) > 0:
            sampled = [self.rewards[unit] for unit in units if unit.index < self._group_size]
            mean = sum(one.metrics.get("correct", one.reward) for one in sampled) / max(len(sampled), 1)
            self.correct[group_id] = max(mean, self.correct.get(group_id, mean))

    def _restart(self, record: Restarted) -> None:
        """Void everything sampled for the group."""
        self.min_versions[record.group_id] = record.policy_version
        self.restarts[record.group_id] += 1
        self.bounds.restarted(record.group_id)
        self.left_out.pop(record.group_id, None)
        self._forget(self.units(record.group_id))

    def _forget(self, units: Iterable[Unit]) -> None:
        """Void what was stored of these units: it was damaged, too old, or left out of its step."""
        for unit in units:
            if self.rewards.pop(unit, None) and unit.split == "train":
                self._num_rewarded[unit.group_id] -= 1
            self.results.pop(unit, None)
            self.progress.pop(unit, None)
