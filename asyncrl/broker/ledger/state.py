"""
State of a run after any number of its ledger's records: what was admitted, stored, rewarded, trained and committed, and
what was thrown away.

Nothing is judged here: `asyncrl.broker.ledger.audit` judges each record by the state before it, audits count in the
state at the end and compare it with the other files of the run. The broker's own books are not reused: an audit must
not repeat their mistakes. So records that a ledger would refuse, such as a second result, are counted like any other.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import NamedTuple

from msgspec import Struct, field

from asyncrl.broker.ledger.records import (
    Admitted,
    AnyRecord,
    Committed,
    Dropped,
    Duplicate,
    FailedAttempt,
    GoalMet,
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
from asyncrl.config.live import Value, schedule_with
from asyncrl.config.sections.schedule import Schedule
from asyncrl.messages.trajectory import TrajectorySummary, Unit

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

    @property
    def num_steps(self) -> int:
        """Steps that the newest live version contains."""
        return self._known[-1][0]

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


# ── open groups ───────────────────────────────────────────────────────────────────────────────
# Training groups from their admission until the weights that they helped to make are live.
#
#     Admitted ─▶ open ─┬─▶ Taken ─▶ VersionLive with a later next_step ─▶ closed
#                       └─▶ Dropped ─────────────────────────────────────▶ closed


class OpenGroups:
    """
    Groups that are admitted, and neither dropped nor in live weights.

    Args:
        untaken: Groups that are open at the beginning, and that no step has taken.
        taken: Groups of each step that was taken and whose weights are not live.
    """

    def __init__(self, untaken: Iterable[int] = (), taken: Mapping[int, Iterable[int]] | None = None) -> None:
        self._taken = {step: list(group_ids) for step, group_ids in (taken or {}).items()}
        self._open = {*untaken, *(group_id for group_ids in self._taken.values() for group_id in group_ids)}
        self.peak = len(self._open)
        """Most groups open at once."""

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, group_id: int) -> bool:
        return group_id in self._open

    def of_step(self, step: int) -> list[int]:
        """Groups that a step took, until its weights are live."""
        return self._taken.get(step, [])

    def admitted(self, group_id: int) -> None:
        self._open.add(group_id)
        self.peak = max(self.peak, len(self._open))

    def dropped(self, group_id: int) -> None:
        self._open.discard(group_id)

    def taken(self, step: int, group_ids: list[int]) -> None:
        self._taken[step] = group_ids

    def live(self, next_step: int) -> list[int]:
        """Close the groups of every step below ``next_step``, whose weights are live. Returns them, step by step."""
        steps = [step for step in self._taken if step < next_step]
        closed = [group_id for step in steps for group_id in self._taken.pop(step)]
        self._open.difference_update(closed)
        return closed


# ── ledger state ──────────────────────────────────────────────────────────────────────────────

METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
"""`Written.file` of these files."""


class TrainedTrajectory(NamedTuple):
    """A trajectory in the batch of a step."""

    step: int
    result: Result
    rewarded: Rewarded | None


class Discarded(Struct):
    """Counts of all that was sampled and not trained on, held-out prompts included, and of failures."""

    num_tokens: Counter[str] = field(
        default_factory=lambda: Counter(
            dropped=0, duplicates=0, reissued=0, restarted=0, refused=0, left_out=0, untrained=0
        )
    )
    """Completion tokens by cause."""
    num_rewards: int = 0
    """Rewards of trajectories discarded by a restart; each of these units is graded again."""
    restarted_lengths: list[int] = []
    """Completion tokens of each trajectory discarded by a restart."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Units left out by reason, those of groups that were restarted since included."""
    reissued: Counter[str] = field(default_factory=Counter)
    """Leases that ended without a result, by cause."""
    num_duplicates: int = 0
    failed_attempts: Counter[str] = field(default_factory=Counter)
    """Failures by stage."""
    num_dead_letters: int = 0


class LedgerState:
    """Apply every record in order with `add`. ``num_greedy`` trajectories of each group are graded, not trained on."""

    def __init__(self, schedule: Schedule, num_greedy: int = 0) -> None:
        self._group_size, self._num_greedy = schedule.group_size, num_greedy
        self.num_records = 0

        # Groups and their units.
        self.admitted: dict[int, Admitted] = {}
        self.min_versions: dict[int, int] = {}
        """Version that was live when each group was admitted, or last restarted."""
        self.restarts: Counter[int] = Counter()
        self.results: dict[Unit, Result] = {}
        """First result of each unit since its group was admitted or restarted, or since one was refused or left out."""
        self.void: set[Unit] = set()
        """Units whose result is there, but damaged, or of a group that its step left out."""
        self.rewards: dict[Unit, Rewarded] = {}
        """First reward of each result."""
        self.progress: dict[Unit, Progressed] = {}
        """Last stored prefix of each unit without a result."""
        self.left_out: dict[int, set[Unit]] = {}
        """Units that each group goes on without, since it was admitted or restarted."""
        self.correct: dict[int, float] = {}
        """Mean ``correct`` of each training group that was complete once, the highest if it was complete again."""
        # Records that no ledger takes: all after the first of their group or unit, and rewards of refused results.
        self.extra_admissions: Counter[int] = Counter()
        self.extra_results: Counter[Unit] = Counter()
        self.extra_rewards: Counter[Unit] = Counter()
        # Rewards of each training group in `rewards`, and its units with something stored or rewarded until it ends.
        self._num_rewarded: Counter[int] = Counter()
        self._seen: defaultdict[int, set[Unit]] = defaultdict(set)

        # Steps, weights and the window.
        self.batches: dict[int, list[int]] = {}
        """Groups of each step, from its last `Taken`."""
        self.next_step = 0
        """Number of steps that got a batch, if none was skipped."""
        self.taken: defaultdict[int, list[int]] = defaultdict(list)
        """Steps of each taken group; a step taken twice is listed twice."""
        self.untrained: dict[int, str] = {}
        """Reason of each taken group that its step left out."""
        self.dropped: defaultdict[int, list[str]] = defaultdict(list)
        """Reasons of each dropped group."""
        self.commits: list[Committed] = []
        self.committed_step = -1
        """Last step that a checkpoint contains; -1 if none does."""
        self.versions = TrainedVersions(schedule.steps_per_publish)
        self.measured: list[Measured] = []
        self.goals: list[GoalMet] = []
        self.discarded = Discarded()
        self.bounds = PromisedBounds(schedule)
        self.open = OpenGroups()
        self.window = schedule.window
        """Largest window so far."""
        self.over_window = (0, 0)
        """Most groups open at an admission to a full window, and its size; zeros if there was none."""

        # What the broker said of the run's other files.
        self.started: Started | None = None
        """Last start of a broker."""
        self.written: dict[tuple[str, int], str] = {}
        """Digest of each file, and of each line, by its file and step."""

    # ── questions ───────────────────────────────────────────────────────────────────────────

    @property
    def first_needed_step(self) -> int:
        """First step whose payloads the spool must still hold: those before it are in two checkpoints."""
        return sorted((-1, -1, *{record.step for record in self.commits}))[-2] + 1

    def units(self, group_id: int) -> list[Unit]:
        """Every unit of a training group that is not left out, greedy ones included."""
        every = (Unit(group_id, index) for index in range(self._group_size + self._num_greedy))
        left_out = self.left_out.get(group_id, ())
        return [unit for unit in every if unit not in left_out]

    def result(self, unit: Unit) -> Result | None:
        """Result of a unit that may be rewarded and trained on; None if it has none, or a void one."""
        return None if unit in self.void else self.results.get(unit)

    def batch(self, step: int) -> list[TrainedTrajectory]:
        """Trajectories in the batch of a step that have a result, greedy ones included."""
        units = (unit for group_id in self.batches.get(step, ()) for unit in self.units(group_id))
        results = (result for unit in units if (result := self.result(unit)))
        return [TrainedTrajectory(step, result, self.rewards.get(result.unit)) for result in results]

    def sampled(self, step: int) -> list[TrainedTrajectory]:
        """Trajectories of a step that are trained on, without the greedy ones."""
        return [item for item in self.batch(step) if item.result.unit.index < self._group_size]

    def summaries(self, group_id: int) -> list[TrajectorySummary]:
        """Summaries of a training group's finished trajectories by index, void ones included, without greedy ones."""
        units = (Unit(group_id, index) for index in range(self._group_size))
        return [self.results[unit].summary for unit in units if unit in self.results]

    def staleness(self) -> Counter[int]:
        """Trained trajectories by staleness: version trained by their step minus their oldest version."""
        return Counter(
            self.versions.of_step(step) - item.result.summary.oldest_version
            for step in self.batches
            for item in self.sampled(step)
        )

    def stored(self) -> Iterator[Result | Progressed]:
        """Records that name a payload."""
        yield from (result for unit, result in self.results.items() if unit not in self.void)
        yield from self.progress.values()

    def needed(self) -> Iterator[Result | Progressed]:
        """Records whose payloads a resumed run would read: of open groups, and of steps not in two checkpoints."""
        first = self.first_needed_step
        kept = {group_id for step, groups in self.batches.items() if step >= first for group_id in groups}
        for record in self.stored():
            group_id = record.unit.group_id
            has_ended = group_id in self.taken or group_id in self.dropped
            if record.unit.split == "train" and (group_id in kept or not has_ended):
                yield record

    # ── records ─────────────────────────────────────────────────────────────────────────────

    def add(self, record: AnyRecord) -> None:
        self.num_records += 1
        match record:
            case Result() | Rewarded() | Progressed() | Refused() | LeftOut():
                self._add_to_unit(record)
            case FailedAttempt() | Reissued() | Duplicate():
                self._add_attempt(record)
            case Admitted() | Restarted() | Taken() | Untrained() | Dropped():
                self._add_to_group(record)
            case Committed() | VersionLive() | Measured() | SettingsSet() | GoalMet() | Started() | Written():
                self._add_to_run(record)
            case _:
                pass  # NodeEvent and SamplingPaused change nothing that an audit asks for.

    def _add_to_group(self, record: Admitted | Restarted | Taken | Untrained | Dropped) -> None:
        match record:
            case Admitted(group_id=group_id):
                self._admit(record)
            case Restarted():
                self._restart(record)
            case Taken(step=step, group_ids=group_ids):
                self.batches[step] = group_ids
                self.next_step = max(self.next_step, step + 1)
                self.open.taken(step, group_ids)
                for group_id in group_ids:
                    self.taken[group_id].append(step)
                    self._seen.pop(group_id, None)
            case Untrained(group_id=group_id, reason=reason):
                self.untrained[group_id] = reason
                self.discarded.num_tokens["untrained"] += record.num_tokens
                self.void.update(unit for unit in self.units(group_id) if unit in self.results)
            case Dropped(group_id=group_id, reason=reason):
                self.dropped[group_id].append(reason)
                self.discarded.num_tokens["dropped"] += record.num_tokens
                self.open.dropped(group_id)
                self._seen.pop(group_id, None)

    def _admit(self, record: Admitted) -> None:
        group_id = record.group_id
        if group_id in self.admitted:
            self.extra_admissions[group_id] += 1
        self.admitted.setdefault(group_id, record)
        self.min_versions[group_id] = record.policy_version
        self.bounds.admitted(group_id)
        self.open.admitted(group_id)
        num_open, window = len(self.open), self.bounds.schedule.window
        if num_open > window:  # A window that was made smaller empties until it has room.
            self.over_window = max(self.over_window, (num_open, window))

    def _restart(self, record: Restarted) -> None:
        """Void everything sampled for the group, unless it has ended."""
        group_id = record.group_id
        self.min_versions[group_id] = record.policy_version
        self.restarts[group_id] += 1
        self.discarded.restarted_lengths += record.lengths
        self.discarded.num_tokens["restarted"] += sum(record.lengths)
        self.bounds.restarted(group_id)
        self.left_out.pop(group_id, None)
        for unit in self._seen.pop(group_id, ()):
            self._forget(unit)
            self.discarded.num_rewards += self.extra_rewards.pop(unit, 0)  # With the one just forgotten.

    def _add_to_unit(self, record: Result | Rewarded | Progressed | Refused | LeftOut) -> None:
        unit = record.unit
        if unit.split == "train" and not isinstance(record, Refused | LeftOut):
            self._seen[unit.group_id].add(unit)
        match record:
            case Progressed():
                self.progress[unit] = record
            case Result():
                if unit in self.results:
                    self.extra_results[unit] += 1
                self.results.setdefault(unit, record)
                self.progress.pop(unit, None)
            case Rewarded():
                self._reward(record)
            case Refused():
                self.discarded.num_tokens["refused"] += record.num_tokens
                self._forget(unit)
            case LeftOut(reason=reason):
                self.discarded.left_out[reason] += 1
                self.discarded.num_tokens["left_out"] += record.num_tokens
                self._forget(unit)
                self.left_out.setdefault(unit.group_id, set()).add(unit)
                self._settled(unit.group_id)

    def _add_attempt(self, record: FailedAttempt | Reissued | Duplicate) -> None:
        match record:
            case FailedAttempt(unit=unit, stage=stage):
                self.discarded.failed_attempts[stage] += 1
                self.discarded.num_dead_letters += record.is_final
                if stage == "payload" and unit in self.results:
                    self.void.add(unit)
                if stage in ("rollout", "environment", "payload"):
                    self.progress.pop(unit, None)
            case Reissued(cause=cause):
                self.discarded.reissued[cause] += 1
                self.discarded.num_tokens["reissued"] += record.num_tokens
                if record.loses_progress:
                    self.progress.pop(record.unit, None)
            case Duplicate():
                self.discarded.num_duplicates += 1
                self.discarded.num_tokens["duplicates"] += record.num_tokens

    def _add_to_run(
        self, record: Committed | VersionLive | Measured | SettingsSet | GoalMet | Started | Written
    ) -> None:
        match record:
            case Committed(step=step):
                self.commits.append(record)
                self.committed_step = max(self.committed_step, step)
            case VersionLive():
                self.versions.add(record)
                self.open.live(record.next_step)
            case Measured():
                self.measured.append(record)
            case SettingsSet(values=values):
                self.bounds.changed(values)
                self.window = max(self.window, self.bounds.schedule.window)
            case GoalMet():
                self.goals.append(record)
            case Started():
                self.started = record
                self.written.pop((SUMMARY, -1), None)  # That of an earlier end, which this broker has removed.
            case Written(file=file, step=step):
                self.written[file, step] = record.sha256

    def _reward(self, record: Rewarded) -> None:
        unit = record.unit
        if unit in self.rewards:
            self.extra_rewards[unit] += 1
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

    def _forget(self, unit: Unit) -> None:
        """Void all that was stored of a unit, which is sampled again, or left out."""
        self.results.pop(unit, None)
        self.extra_results.pop(unit, None)
        self.void.discard(unit)
        self.progress.pop(unit, None)
        if self.rewards.pop(unit, None):
            self.extra_rewards[unit] += 1
            self._num_rewarded[unit.group_id] -= unit.split == "train"


def unit_name(unit: Unit) -> str:
    """Name of a trajectory in messages."""
    return f"unit {unit.group_id}/{unit.index}{' (held-out)' if unit.split == 'held_out' else ''}"
