"""
Counts over a ledger's records, made in one pass: groups, units, tokens and steps. `audit` judges them.

    Admitted ─▶ open ─┬─▶ Taken ─▶ VersionLive with a later next_step ─▶ closed
                      │      └─▶ Untrained: the trainer left the group out of its step
                      ├─▶ Refused: still open, the result of one unit is void
                      ├─▶ LeftOut: still open, and goes on without one unit
                      ├─▶ Restarted: still open, its results and rewards so far are void
                      └─▶ Dropped ──────────────────────────────────────▶ closed

The broker's own rules are not reused: an audit must not repeat their mistakes. Records that a ledger would refuse (a
second result, a group dropped twice) are counted like any other.
"""

from collections import Counter, defaultdict

from asyncrl.broker.ledger.records import (
    Admitted,
    AnyRecord,
    Committed,
    Dropped,
    Duplicate,
    FailedAttempt,
    LeftOut,
    Refused,
    Reissued,
    Restarted,
    Result,
    Rewarded,
    SettingsSet,
    Taken,
    Untrained,
    VersionLive,
)
from asyncrl.broker.ledger.trained_versions import TrainedVersions
from asyncrl.config.live import schedule_with
from asyncrl.config.sections.schedule import Schedule
from asyncrl.messages.trajectory import TrajectorySummary, Unit


class RecordCounts:
    """Apply every record in order with `add`, then read the counts."""

    def __init__(self, schedule: Schedule) -> None:
        self.admitted: Counter[int] = Counter()
        self.results: Counter[Unit] = Counter()
        """Results of each unit since its group was admitted or restarted, without refused ones."""
        self.rewards: Counter[Unit] = Counter()
        """Rewards of each unit, likewise."""
        self.summaries: dict[Unit, TrajectorySummary] = {}
        """Summary of the first of these results."""
        self.batches: dict[int, list[int]] = {}
        """Groups of each step, from its last `Taken`."""
        self.trained_steps: defaultdict[int, list[int]] = defaultdict(list)
        """Steps of each taken group; a step taken twice is listed twice."""
        self.untrained: dict[int, str] = {}
        """Reason of each taken group that its step left out."""
        self.wrong_untrained: list[int] = []
        """Groups that a step left out, though its batch does not contain them or it left them out before."""
        self.wrong_refusals: list[Unit] = []
        """Units refused without a result, or after their group was taken."""
        self.left_out: set[Unit] = set()
        """Units that their groups go on without, since they were admitted or restarted."""
        self.left_out_reasons: Counter[str] = Counter()
        """Units left out by reason, those of groups that were restarted since included."""
        self.wrong_left_out: list[Unit] = []
        """Units left out of a group that was not open, twice, or after they had a reward."""
        self.committed_step = -1
        self.drop_reasons: defaultdict[int, list[str]] = defaultdict(list)
        """Reasons of each dropped group."""
        self.restarts: Counter[int] = Counter()
        self.wrong_restarts: list[int] = []
        """Groups restarted while not open, or after being trained."""
        self.num_void_rewards = 0
        """Rewards of trajectories discarded by a restart; each of these units is graded again."""
        self.restarted_lengths: list[int] = []
        """Completion tokens of each trajectory discarded by a restart."""
        self.reissued: Counter[str] = Counter()
        self.num_duplicates = 0
        self.failed_attempts: Counter[str] = Counter()
        self.num_dead_letters = 0
        self.discarded_tokens: Counter[str] = Counter(
            dropped=0, duplicates=0, reissued=0, restarted=0, refused=0, left_out=0, untrained=0
        )
        """Completion tokens that were not trained on, by cause."""
        self.peak_open = 0
        self.window = schedule.window
        """Largest window so far."""
        self.over_window = (0, 0)
        """Most groups open at an admission to a full window, and its size; zeros if there was none."""
        self._schedule = schedule
        self._open: set[int] = set()
        self._seen_units: defaultdict[int, set[Unit]] = defaultdict(set)
        """Units with a result or a reward, of groups neither trained nor dropped."""
        self._awaiting_version: dict[int, list[int]] = {}
        """Groups of each step whose weights are not live yet; these groups are still open."""

    def add(self, record: AnyRecord) -> None:
        match record:
            case Admitted(group_id=group_id):
                self.admitted[group_id] += 1
                self._open.add(group_id)
                self._check_window()
            case Result(unit=unit, summary=summary):
                self.results[unit] += 1
                self.summaries.setdefault(unit, summary)
                self._note_unit(unit)
            case Rewarded(unit=unit):
                self.rewards[unit] += 1
                self._note_unit(unit)
            case Taken(step=step, group_ids=group_ids):
                self._take(step, group_ids)
            case Committed(step=step):
                self.committed_step = max(self.committed_step, step)
            case VersionLive():
                self._live(record)
            case Dropped(group_id=group_id, reason=reason):
                self.drop_reasons[group_id].append(reason)
                self.discarded_tokens["dropped"] += record.num_tokens
                self._open.discard(group_id)
                self._seen_units.pop(group_id, None)
            case Restarted():
                self._restart(record)
            case SettingsSet(values=values):
                self._schedule = schedule_with(self._schedule, values)
                self.window = max(self.window, self._schedule.window)
            case Refused() | LeftOut() | Untrained() | Duplicate() | Reissued() | FailedAttempt():
                self._add_failure(record)
            case _:
                pass  # Measured, Progressed, NodeEvent, Started, Written: nothing to count

    def _check_window(self) -> None:
        """Judge an admission. A window that was made smaller empties until it has room."""
        num_open, window = len(self._open), self._schedule.window
        self.peak_open = max(self.peak_open, num_open)
        if num_open > window:
            self.over_window = max(self.over_window, (num_open, window))

    def summaries_of(self, group_id: int, group_size: int) -> list[TrajectorySummary]:
        """Summaries of a training group's finished trajectories, by index."""
        units = (Unit(group_id, index) for index in range(group_size))
        return [self.summaries[unit] for unit in units if unit in self.summaries]

    def staleness(self, group_size: int, versions: TrainedVersions) -> Counter[int]:
        """Trained trajectories by staleness: version trained by their step minus their oldest version."""
        staleness: Counter[int] = Counter()
        for step, group_ids in self.batches.items():
            for group_id in (group_id for group_id in group_ids if group_id not in self.untrained):
                for summary in self.summaries_of(group_id, group_size):
                    staleness[versions.of_step(step) - summary.oldest_version] += 1
        return staleness

    def _note_unit(self, unit: Unit) -> None:
        if unit.split == "train":
            self._seen_units[unit.group_id].add(unit)

    def _restart(self, record: Restarted) -> None:
        group_id = record.group_id
        if group_id not in self._open or group_id in self.trained_steps:
            self.wrong_restarts.append(group_id)
        self.restarts[group_id] += 1
        self.restarted_lengths += record.lengths
        self.discarded_tokens["restarted"] += sum(record.lengths)
        self.left_out = {unit for unit in self.left_out if unit.group_id != group_id}
        for unit in self._seen_units.pop(group_id, ()):
            self.results.pop(unit, None)
            self.num_void_rewards += self.rewards.pop(unit, 0)
            self.summaries.pop(unit, None)

    def _add_failure(self, record: Refused | LeftOut | Untrained | Duplicate | Reissued | FailedAttempt) -> None:
        match record:
            case Refused():
                self._refuse(record)
            case LeftOut():
                self._leave_out_unit(record)
            case Untrained():
                self._leave_out(record)
            case Duplicate():
                self.num_duplicates += 1
                self.discarded_tokens["duplicates"] += record.num_tokens
            case Reissued():
                self.reissued[record.cause] += 1
                self.discarded_tokens["reissued"] += record.num_tokens
            case FailedAttempt():
                self.failed_attempts[record.stage] += 1
                self.num_dead_letters += record.is_final

    def _refuse(self, record: Refused) -> None:
        unit = record.unit
        if unit not in self.results or (unit.split == "train" and unit.group_id in self.trained_steps):
            self.wrong_refusals.append(unit)
        self.discarded_tokens["refused"] += record.num_tokens
        self.results.pop(unit, None)
        self.summaries.pop(unit, None)

    def _leave_out_unit(self, record: LeftOut) -> None:
        unit = record.unit
        is_open = unit.group_id in self._open and unit.group_id not in self.trained_steps
        if not is_open or unit in self.left_out or unit in self.rewards:
            self.wrong_left_out.append(unit)
        self.left_out.add(unit)
        self.left_out_reasons[record.reason] += 1
        self.discarded_tokens["left_out"] += record.num_tokens
        self.results.pop(unit, None)
        self.summaries.pop(unit, None)

    def _leave_out(self, record: Untrained) -> None:
        group_id = record.group_id
        if group_id not in self.batches.get(record.step, ()) or group_id in self.untrained:
            self.wrong_untrained.append(group_id)
        self.untrained[group_id] = record.reason
        self.discarded_tokens["untrained"] += record.num_tokens

    def _take(self, step: int, group_ids: list[int]) -> None:
        self.batches[step] = self._awaiting_version[step] = group_ids
        for group_id in group_ids:
            self.trained_steps[group_id].append(step)
            self._seen_units.pop(group_id, None)

    def _live(self, record: VersionLive) -> None:
        for step in [step for step in self._awaiting_version if step < record.next_step]:
            self._open.difference_update(self._awaiting_version.pop(step))
