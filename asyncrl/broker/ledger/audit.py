"""
Audit of a run's data from its ledger alone. The run may still be going on, or may have been killed.

    issued = trained + untrained (by cause) + dropped (by reason) + open        skipped 0        double-trained 0

Checked: every admitted group is in exactly one of these four places; group ids are consecutive, but for retired
prompts; a step takes whole groups, each trajectory of which has one result and one reward, or was left out with its
reason; the window never held more groups than it may; and each record was possible after those before it: versions,
staleness, rewards, commits. `Audit.problems` has one sentence for each violation.
`asyncrl.broker.audit` compares the ledger with the run's other files.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from asyncrl.broker.ledger.records import (
    Admitted,
    AnyRecord,
    Committed,
    GoalMet,
    LeftOut,
    Measured,
    Record,
    Refused,
    Restarted,
    Result,
    Rewarded,
    Taken,
    Untrained,
    VersionLive,
)
from asyncrl.broker.ledger.state import LedgerState, unit_name
from asyncrl.config.sections.run import goal_of
from asyncrl.config.sections.schedule import Schedule
from asyncrl.errors import ConfigError
from asyncrl.messages.trajectory import Unit
from asyncrl.records.formatting import nth

# ── rules ──────────────────────────────────────────────────────────────────────────────────────
# Rules of a ledger: of each record, judged by the state before it, and of the state at the end.
#
#     Admitted, Restarted    at the version that was live; a group restarts only while it is open
#     Result                 if it is used: tokens of versions that existed by then, none older than its group
#     Rewarded               after its result, of the same restart; finite numbers
#     Refused                a result that no step has taken
#     LeftOut                a unit without a reward, once, of an open group
#     Taken                  once; each trajectory rewarded, and within the staleness that the schedule promises
#     Untrained              a group of the step, once
#     Committed              a later step than before, which was taken
#     VersionLive            a newer version, of steps that were taken
#     Measured               of a version that was live; a finite accuracy
#     GoalMet                by a version that was measured so; no step more was taken
#     the end                group ids are consecutive, each group ended once; one result and one reward of each unit
#                            that was trained on; whole steps, none skipped; the window was never exceeded
#
# A rule yields a sentence for each violation.

# ── each record ───────────────────────────────────────────────────────────────────────────────


def _admitted(state: LedgerState, record: Admitted) -> Iterator[str]:
    yield from _at_live_version(state, record, "admitted")


def _restarted(state: LedgerState, record: Restarted) -> Iterator[str]:
    yield from _at_live_version(state, record, "restarted")
    if not _is_untaken(state, record.group_id):
        yield f"group {record.group_id} was restarted, but it was not open"


def _rewarded(state: LedgerState, record: Rewarded) -> Iterator[str]:
    unit, result = record.unit, state.result(record.unit)
    for name, value in {"reward": record.reward, **record.metrics}.items():
        if not math.isfinite(value):
            yield f"{unit_name(unit)} has the {name} {value}: expected a finite number"
    if result is None:
        yield f"{unit_name(unit)} was rewarded before it had a result"
    elif unit.split == "train" and result.num_restarts != record.num_restarts:
        yield (
            f"{unit_name(unit)} has a reward of restart {record.num_restarts}, but its result is of restart "
            f"{result.num_restarts}"
        )


def _refused(state: LedgerState, record: Refused) -> Iterator[str]:
    unit = record.unit
    if unit not in state.results or (unit.split == "train" and unit.group_id in state.taken):
        yield f"{unit_name(unit)} was refused, but it had no result, or was taken by a step already"


def _left_out(state: LedgerState, record: LeftOut) -> Iterator[str]:
    unit = record.unit
    was_left_out = unit in state.left_out.get(unit.group_id, ())
    if not _is_untaken(state, unit.group_id) or was_left_out or unit in state.rewards:
        yield f"{unit_name(unit)} was left out, but its group was not open, or it had a reward, or was left out before"


def _taken(state: LedgerState, record: Taken) -> Iterator[str]:
    if record.step in state.batches:
        yield f"step {nth(record.step)} was taken twice"


def _untrained(state: LedgerState, record: Untrained) -> Iterator[str]:
    if record.group_id not in state.batches.get(record.step, ()) or record.group_id in state.untrained:
        yield f"group {record.group_id} was left out of a step that does not contain it, or twice"


def _committed(state: LedgerState, record: Committed) -> Iterator[str]:
    step, before, taken = record.step, state.committed_step, state.next_step
    if step >= taken:
        yield f"step {nth(step)} was committed, but only {taken} steps were taken"
    if step <= before:
        yield f"step {nth(step)} was committed after step {nth(before)}: expected a later one"


def _live(state: LedgerState, record: VersionLive) -> Iterator[str]:
    version, steps, taken = record.policy_version, record.next_step, state.next_step
    if problem := state.versions.problem(record):
        yield problem
    if steps > taken:
        yield f"version {version} contains {steps} steps, but only {taken} steps were taken"


def _measured(state: LedgerState, record: Measured) -> Iterator[str]:
    if record.policy_version not in state.versions.live:
        yield f"version {record.policy_version} was evaluated, but never went live"
    if record.num_prompts and not math.isfinite(record.accuracy):  # Without prompts nothing was measured.
        yield f"version {record.policy_version} has the accuracy {record.accuracy}: expected a finite number"


def _goal_met(state: LedgerState, record: GoalMet) -> Iterator[str]:
    version = record.policy_version
    try:
        goal = goal_of(record.stop_when)
    except ConfigError as error:
        yield str(error)
        return
    values = [{"accuracy": one.accuracy, **one.metrics} for one in state.measured if one.policy_version == version]
    if not any(map(goal.is_met, values)):
        yield f"the run was ended because version {version} meets {record.stop_when!r}, which no evaluation shows"
    if record.steps < state.next_step:
        yield f"the run was ended after {record.steps} steps, but {state.next_step} were taken"


RULES: Mapping[type[Record], Callable[[LedgerState, Any], Iterator[str]]] = {
    Admitted: _admitted,
    Restarted: _restarted,
    Rewarded: _rewarded,
    Refused: _refused,
    LeftOut: _left_out,
    Taken: _taken,
    Untrained: _untrained,
    Committed: _committed,
    VersionLive: _live,
    Measured: _measured,
    GoalMet: _goal_met,
}
"""Rule of each kind of record that counts at once. Nothing follows from the records before those that are not here."""


def _at_live_version(state: LedgerState, record: Admitted | Restarted, how: str) -> Iterator[str]:
    live = state.versions.live_version
    if record.policy_version != live:
        yield f"group {record.group_id} was {how} at version {record.policy_version}: expected the live one, {live}"


def _is_untaken(state: LedgerState, group_id: int) -> bool:
    return group_id in state.open and group_id not in state.taken


# ── what a record claims ──────────────────────────────────────────────────────────────────────
# A result is a node's claim, which may still be thrown away: its rules count once it is trained on or evaluated. A
# batch is trained on unless the trainer leaves one of its groups out.


def _claimed(state: LedgerState, record: Result) -> Iterator[str]:
    """Sentences about a result that cannot be: its versions, and its restart."""
    unit, oldest, newest = record.unit, record.summary.oldest_version, record.summary.newest_version
    # A version is staged once every step that it contains is trained, and those steps were taken before.
    latest = max(state.versions.of_step(state.next_step), state.versions.live_version)
    if not 0 <= oldest <= newest <= latest:
        yield (
            f"{unit_name(unit)} has tokens of the versions {oldest} to {newest}: expected versions from 0 to "
            f"{latest}, which existed by then"
        )
    if unit.split == "held_out":
        return
    if oldest < (least := state.min_versions.get(unit.group_id, 0)):
        yield (
            f"{unit_name(unit)} has tokens of version {oldest}: expected none older than its group, admitted or "
            f"restarted at version {least}"
        )
    if record.num_restarts != (restarts := state.restarts[unit.group_id]):
        yield f"{unit_name(unit)} has a result of restart {record.num_restarts}: expected restart {restarts}"


def _stale(state: LedgerState, step: int, result: Result) -> Iterator[str]:
    summary, bound = result.summary, state.bounds.of(result.unit.group_id)
    version = state.versions.of_step(step)
    staleness, newest = version - summary.oldest_version, summary.newest_version
    if bound is not None and staleness > bound:
        yield (
            f"{unit_name(result.unit)} is stale beyond its bound: step {nth(step)} trains version {version} on tokens "
            f"of version {summary.oldest_version}, expected at most {bound} versions between them, got {staleness}"
        )
    if newest > version:
        yield (
            f"{unit_name(result.unit)} has tokens of version {newest}, newer than version {version}, which step "
            f"{nth(step)} trains"
        )


class RecordRules:
    """Judge every record, in order, with `add`; ``state`` is that after the last one."""

    def __init__(self, schedule: Schedule, num_greedy: int = 0) -> None:
        self.state = LedgerState(schedule, num_greedy)
        self._problems: list[str] = []
        self._of_taken: dict[int, list[str]] = {}
        """Sentences about trajectories of a batch, by group: the trainer may still leave the group out."""
        self._of_results: dict[Unit, list[str]] = {}
        """Sentences about results that are neither trained on nor evaluated yet."""

    @property
    def problems(self) -> list[str]:
        """A sentence for each violation."""
        return [*self._problems, *(problem for group in self._of_taken.values() for problem in group)]

    def add(self, record: AnyRecord) -> None:
        if rule := RULES.get(type(record)):
            self._problems += rule(self.state, record)
        match record:
            case Result(unit=unit):
                self._of_results[unit] = list(_claimed(self.state, record))
            case Rewarded(unit=unit) if unit.split == "held_out" and self.state.result(unit):
                self._problems += self._of_results.pop(unit, ())
            case Taken(step=step, group_ids=group_ids):
                for group_id in group_ids:
                    self._of_taken.setdefault(group_id, []).extend(self._trained_on(step, group_id))
            case Untrained(group_id=group_id):
                self._of_taken.pop(group_id, None)
        self.state.add(record)

    def _trained_on(self, step: int, group_id: int) -> Iterator[str]:
        for unit in self.state.units(group_id):
            if (result := self.state.result(unit)) is None:
                continue  # `_unit_problems` says so at the end.
            if unit not in self.state.rewards:
                yield f"{unit_name(unit)} was taken by step {nth(step)} before it had a reward"
            yield from self._of_results.pop(unit, ())
            yield from _stale(self.state, step, result)


# ── the end ───────────────────────────────────────────────────────────────────────────────────


def skipped_groups(state: LedgerState) -> list[int]:
    """Ids below the newest that were never admitted."""
    return sorted(set(range(max(state.admitted, default=-1))) - state.admitted.keys())


def _group_problems(state: LedgerState) -> Iterator[str]:
    for group_id, extra in state.extra_admissions.items():
        yield f"group {group_id} was admitted {extra + 1} times"
    for group_id, steps in state.taken.items():
        if len(steps) > 1:
            yield f"group {group_id} was trained {len(steps)} times: in steps {', '.join(str(nth(s)) for s in steps)}"
        if group_id in state.dropped:
            yield f"group {group_id} was trained in step {nth(steps[0])} and dropped ({state.dropped[group_id][0]})"
        if group_id not in state.admitted:
            yield f"group {group_id} was trained in step {nth(steps[0])}, but never admitted"
    for group_id, reasons in state.dropped.items():
        if len(reasons) > 1:
            yield f"group {group_id} was dropped {len(reasons)} times ({'; '.join(reasons)})"
        if group_id not in state.admitted:
            yield f"group {group_id} was dropped ({reasons[0]}), but never admitted"


def _unit_problems(state: LedgerState, group_size: int) -> Iterator[str]:
    """Sentences about units without their one result and one reward."""
    for unit in state.results:
        if extra := state.extra_results.get(unit):
            yield f"{unit_name(unit)} has {extra + 1} results"
        if unit.split == "train" and unit.group_id not in state.admitted:
            yield f"{unit_name(unit)} has a result, but group {unit.group_id} was never admitted"
    for unit in (unit for units in state.left_out.values() for unit in units if unit in state.results):
        yield f"{unit_name(unit)} was left out of its group, and has a result since"
    for unit, extra in state.extra_rewards.items():
        if (times := extra + (unit in state.rewards)) > 1:
            yield f"{unit_name(unit)} has {times} rewards"
    for group_id, steps in state.taken.items():
        units = (Unit(group_id, index) for index in range(group_size))
        for unit in (unit for unit in units if unit not in state.left_out.get(group_id, ())):
            if unit not in state.results:
                yield f"{unit_name(unit)} was trained in step {nth(steps[0])}, but has no result"
            if unit not in state.rewards:
                yield f"{unit_name(unit)} was trained in step {nth(steps[0])}, but has no reward"


def _schedule_problems(state: LedgerState, groups_per_step: int) -> Iterator[str]:
    for step in range(max(state.batches, default=-1)):
        if step not in state.batches:
            yield f"step {nth(step)} was skipped: it got no batch, but step {nth(max(state.batches))} did"
    for step, group_ids in state.batches.items():
        if len(group_ids) != groups_per_step:
            yield f"the batch of step {nth(step)} has {len(group_ids)} of {groups_per_step} groups (groups_per_step)"
    num_open, window = state.over_window
    if num_open:
        yield f"{num_open} groups were open at once, but the window holds {window}"


def end_problems(state: LedgerState, schedule: Schedule, *, retires: bool) -> Iterator[str]:
    """
    Sentences about the state after the last record.

    Args:
        retires: Prompts are retired, which leaves out group ids.
    """
    last = max(state.admitted, default=-1)
    for group_id in () if retires else skipped_groups(state):
        yield f"group {group_id} was skipped: it was never admitted, but group {last} was"
    yield from _group_problems(state)
    yield from _unit_problems(state, schedule.group_size)
    yield from _schedule_problems(state, schedule.groups_per_step)


# ── audit ──────────────────────────────────────────────────────────────────────────────────────

LEDGER = "ledger.sqlite"
SHORTEST_BUCKET = 16
"""Tokens: upper bound of the first bucket."""


class LengthBucket(Struct, frozen=True, kw_only=True):
    """Trajectories of similar length. Training is biased if long ones are discarded more often than short ones."""

    max_tokens: int
    """Upper bound, completion tokens: 16 or a larger power of two. The lower bound is half of it, exclusive, or 0."""
    trained: int
    dropped: int
    """Finished trajectories of dropped groups, and of groups left out of their step."""
    restarted: int = 0
    """Trajectories discarded by a restart of their group, by the tokens they had on disk."""


class Audit(Struct, frozen=True, kw_only=True):
    """
    Counts of a run, and the problems found in them.

    Groups, trained tokens, lengths and staleness cover the training data; attempts, duplicates, dead letters and
    tokens thrown away include held-out prompts.
    """

    steps: int
    """Steps that got a batch."""
    unreported: int = 0
    """Steps of these whose batch was handed out, and of which neither metrics nor a live version tell yet."""
    issued: int
    trained: int
    """Groups in the batch of a step, without those that the trainer left out."""
    committed: int
    """Trained groups whose step a checkpoint contains."""
    dropped: dict[str, int]
    """Groups that ended untrained, by reason, most frequent first."""
    untrained: dict[str, int] = {}
    """Groups that the trainer left out of their step, by cause, most frequent first."""
    open: int
    """Groups admitted, neither taken by a step nor dropped."""
    restarted: int = 0
    """Restarts of groups that grew too old to be trained on."""
    void_rewards: int = 0
    """Rewards of trajectories that a restart of their group made void; each has another one since, if it is trained."""
    skipped: int
    """Group ids below the newest that were never admitted."""
    double_trained: int
    """Groups in more than one batch."""
    peak_open: int
    """Most groups open at once. A trained group stays open until the weights of its step are live."""
    window: int
    """Largest window that the run had."""
    reissued: dict[str, int]
    """Trajectories leased again, by cause, most frequent first."""
    duplicates: int
    """Trajectories of units that had one already, or were no longer needed."""
    failed_attempts: dict[str, int]
    """Failed generations and verifier calls, and damaged trajectories, by stage."""
    left_out: dict[str, int] = {}
    """Trajectories that failed for good and that their groups went on without, by reason, most frequent first."""
    dead_letters: int
    """Units that failed for good."""
    tokens_trained: int
    tokens_thrown_away: dict[str, int]
    """
    Completion tokens of dropped groups, duplicates, re-issued units, restarted groups, refused trajectories,
    trajectories left out of their group, and groups left out of a step.
    """
    staleness_max: int
    """Policy versions; 0 if nothing was trained."""
    staleness: dict[int, int]
    """Trained trajectories by staleness."""
    over_max_staleness: int = 0
    """Trained trajectories older than ``schedule.max_staleness``."""
    lengths: list[LengthBucket]
    dropped_unfinished: int
    """Trajectories of dropped groups, and of groups left out of their step, without a result: of unknown length."""
    problems: list[str]
    """One sentence for each violated rule. Empty if the counts are consistent."""
    checked: dict[str, str] = {}
    """Extent of the checks by file."""
    unchecked: dict[str, str] = {}
    """Things that could not be checked by file, with the reason."""
    retired: int = 0
    """Places in the order of the data that were passed over because their prompt was retired."""


def audit(records: Iterable[AnyRecord], schedule: Schedule, num_greedy: int = 0, *, retires: bool = False) -> Audit:
    """Count and check all records of a ledger, given in order; see `examine`."""
    return examine(records, schedule, num_greedy, retires=retires)[0]


def examine(
    records: Iterable[AnyRecord], schedule: Schedule, num_greedy: int = 0, *, retires: bool = False
) -> tuple[Audit, LedgerState]:
    """
    Count and check all records of a ledger, given in order. Returns the audit, and the state after the last record.

    Args:
        num_greedy: Trajectories of each group that are graded, but not trained on.
        retires: Prompts are retired (``data.retire_at``), which leaves out ids; whether they were the right ones can
            be told only with the data.
    """
    rules = RecordRules(schedule, num_greedy)
    for record in records:
        rules.add(record)
    problems = [*end_problems(rules.state, schedule, retires=retires), *rules.problems]
    return _counted(rules.state, schedule, problems, retires=retires), rules.state


def _counted(state: LedgerState, schedule: Schedule, problems: list[str], *, retires: bool) -> Audit:
    trained = {group_id: steps for group_id, steps in state.taken.items() if group_id not in state.untrained}
    unused = [*state.dropped, *state.untrained]
    trained_lengths, unused_lengths = _lengths(trained, state), _lengths(unused, state)
    num_left_out = sum(len(state.left_out.get(group_id, ())) for group_id in {*unused})
    staleness, most = state.staleness(), math.inf if schedule.max_staleness is None else schedule.max_staleness
    num_skipped = len(skipped_groups(state))
    return Audit(
        steps=len(state.batches),
        issued=len(state.admitted),
        trained=len(trained),
        committed=sum(min(steps) <= state.committed_step for steps in trained.values()),
        dropped=dict(Counter(reasons[0] for reasons in state.dropped.values()).most_common()),
        untrained=dict(Counter(map(cause_of, state.untrained.values())).most_common()),
        open=len(state.admitted.keys() - state.taken.keys() - state.dropped.keys()),
        restarted=state.restarts.total(),
        void_rewards=state.discarded.num_rewards,
        skipped=0 if retires else num_skipped,
        retired=num_skipped if retires else 0,
        double_trained=sum(len(steps) > 1 for steps in state.taken.values()),
        peak_open=state.open.peak,
        window=state.window,
        reissued=dict(state.discarded.reissued.most_common()),
        duplicates=state.discarded.num_duplicates,
        failed_attempts=dict(state.discarded.failed_attempts.most_common()),
        left_out=dict(state.discarded.left_out.most_common()),
        dead_letters=state.discarded.num_dead_letters,
        tokens_trained=sum(trained_lengths),
        tokens_thrown_away=dict(state.discarded.num_tokens),
        staleness_max=max(staleness, default=0),
        staleness=dict(sorted(staleness.items())),
        over_max_staleness=sum(num for versions, num in staleness.items() if versions > most),
        lengths=_buckets(trained_lengths, unused_lengths, state.discarded.restarted_lengths),
        dropped_unfinished=schedule.group_size * len(unused) - len(unused_lengths) - num_left_out,
        problems=problems,
        checked={LEDGER: f"{state.num_records:,} records"},
    )


def cause_of(reason: str) -> str:
    """First part of a reason, before the numbers: `asyncrl.messages.sound.CAUSES`."""
    return reason.partition(":")[0]


def _lengths(group_ids: Iterable[int], state: LedgerState) -> list[int]:
    """Completion tokens of every finished trajectory of the groups."""
    return [summary.num_tokens for group_id in group_ids for summary in state.summaries(group_id)]


def _buckets(trained: list[int], dropped: list[int], restarted: list[int]) -> list[LengthBucket]:
    """All buckets up to the longest trajectory, empty ones included."""
    num_trained, num_dropped, num_restarted = (Counter(map(_bucket, some)) for some in (trained, dropped, restarted))
    longest = max((*num_trained, *num_dropped, *num_restarted), default=0)
    bounds = [SHORTEST_BUCKET << i for i in range((longest // SHORTEST_BUCKET).bit_length())]
    return [
        LengthBucket(max_tokens=n, trained=num_trained[n], dropped=num_dropped[n], restarted=num_restarted[n])
        for n in bounds
    ]


def _bucket(num_tokens: int) -> int:
    return max(SHORTEST_BUCKET, 1 << max(num_tokens - 1, 0).bit_length())
