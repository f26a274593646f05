"""
Audit of a run's data from its ledger alone. The run may still be going on, or may have been killed.

    issued = trained + untrained (by cause) + dropped (by reason) + open        skipped 0        double-trained 0

Checked: every admitted group is in exactly one of these four places; group ids are consecutive, but for retired
prompts; a step takes whole groups, each trajectory of which has one result and one reward, or was left out with its
reason; the window never held more groups than it may; and each record was possible after those before it
(`record_rules`): versions, staleness, rewards, commits. `Audit.problems` has one sentence for each violation.
`asyncrl.broker.audit` compares the ledger with the run's other files.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import Struct

from asyncrl.broker.ledger.counts import RecordCounts
from asyncrl.broker.ledger.record_book import RecordBook
from asyncrl.broker.ledger.record_rules import RecordRules, unit_name
from asyncrl.broker.ledger.records import AnyRecord
from asyncrl.config.sections.schedule import Schedule
from asyncrl.messages.trajectory import Unit

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
) -> tuple[Audit, RecordBook]:
    """
    Count and check all records of a ledger, given in order. Returns the audit, and the state after the last record.

    Args:
        num_greedy: Trajectories of each group that are graded, but not trained on.
        retires: Prompts are retired (``data.retire_at``), which leaves out ids; whether they were the right ones can
            be told only with the data.
    """
    group_size, max_staleness = schedule.group_size, schedule.max_staleness
    counts, rules = RecordCounts(schedule), RecordRules(schedule, num_greedy)
    for record in records:
        counts.add(record)
        rules.add(record)
    taken, dropped, untrained = counts.trained_steps, counts.drop_reasons, counts.untrained
    trained = {group_id: steps for group_id, steps in taken.items() if group_id not in untrained}
    trained_lengths = _lengths(trained, counts, group_size)
    unused = [*dropped, *untrained]
    unused_lengths = _lengths(unused, counts, group_size)
    num_left_out = sum(unit.group_id in dropped or unit.group_id in untrained for unit in counts.left_out)
    staleness = counts.staleness(group_size, rules.book.versions)
    over_max_staleness = (
        0 if max_staleness is None else sum(num for versions, num in staleness.items() if versions > max_staleness)
    )
    skipped = _skipped(counts)
    accounts = Audit(
        steps=len(counts.batches),
        issued=len(counts.admitted),
        trained=len(trained),
        committed=sum(min(steps) <= counts.committed_step for steps in trained.values()),
        dropped=dict(Counter(reasons[0] for reasons in dropped.values()).most_common()),
        untrained=dict(Counter(map(cause_of, untrained.values())).most_common()),
        open=len(counts.admitted.keys() - taken.keys() - dropped.keys()),
        restarted=counts.restarts.total(),
        void_rewards=counts.num_void_rewards,
        skipped=0 if retires else len(skipped),
        retired=len(skipped) if retires else 0,
        double_trained=sum(len(steps) > 1 for steps in taken.values()),
        peak_open=counts.peak_open,
        window=counts.window,
        reissued=dict(counts.reissued.most_common()),
        duplicates=counts.num_duplicates,
        failed_attempts=dict(counts.failed_attempts.most_common()),
        left_out=dict(counts.left_out_reasons.most_common()),
        dead_letters=counts.num_dead_letters,
        tokens_trained=sum(trained_lengths),
        tokens_thrown_away=dict(counts.discarded_tokens),
        staleness_max=max(staleness, default=0),
        staleness=dict(sorted(staleness.items())),
        over_max_staleness=over_max_staleness,
        lengths=_buckets(trained_lengths, unused_lengths, counts.restarted_lengths),
        dropped_unfinished=group_size * len(unused) - len(unused_lengths) - num_left_out,
        problems=[
            *([] if retires else _skip_problems(counts, skipped)),
            *_group_problems(counts),
            *_unit_problems(counts, group_size),
            *_schedule_problems(counts, schedule),
            *rules.problems,
        ],
        checked={LEDGER: f"{rules.book.num_records:,} records"},
    )
    return accounts, rules.book


# ── problems ─────────────────────────────────────────────────────────────────────────────────


def _skip_problems(counts: RecordCounts, skipped: Iterable[int]) -> Iterator[str]:
    last = max(counts.admitted, default=-1)
    for group_id in skipped:
        yield f"group {group_id} was skipped: it was never admitted, but group {last} was"


def _group_problems(counts: RecordCounts) -> Iterator[str]:
    admitted, trained, dropped = counts.admitted, counts.trained_steps, counts.drop_reasons
    for group_id, times in admitted.items():
        if times > 1:
            yield f"group {group_id} was admitted {times} times"
    for group_id, steps in trained.items():
        if len(steps) > 1:
            yield f"group {group_id} was trained {len(steps)} times: in steps {', '.join(map(str, steps))}"
        if group_id in dropped:
            yield f"group {group_id} was trained in step {steps[0]} and dropped ({dropped[group_id][0]})"
        if group_id not in admitted:
            yield f"group {group_id} was trained in step {steps[0]}, but never admitted"
    for group_id, reasons in dropped.items():
        if len(reasons) > 1:
            yield f"group {group_id} was dropped {len(reasons)} times ({'; '.join(reasons)})"
        if group_id not in admitted:
            yield f"group {group_id} was dropped ({reasons[0]}), but never admitted"
    for group_id in counts.wrong_restarts:
        yield f"group {group_id} was restarted, but it was not open"
    for group_id in counts.wrong_untrained:
        yield f"group {group_id} was left out of a step that does not contain it, or twice"


def _unit_problems(counts: RecordCounts, group_size: int) -> Iterator[str]:
    for unit, times in counts.results.items():
        if times > 1:
            yield f"{unit_name(unit)} has {times} results"
        if unit.split == "train" and unit.group_id not in counts.admitted:
            yield f"{unit_name(unit)} has a result, but group {unit.group_id} was never admitted"
    for unit in counts.wrong_left_out:
        yield f"{unit_name(unit)} was left out, but its group was not open, or it had a reward, or was left out before"
    for unit in counts.left_out & counts.results.keys():
        yield f"{unit_name(unit)} was left out of its group, and has a result since"
    for unit in counts.wrong_refusals:
        yield f"{unit_name(unit)} was refused, but it had no result, or was taken by a step already"
    for unit, times in counts.rewards.items():
        if times > 1:
            yield f"{unit_name(unit)} has {times} rewards"
    for group_id, steps in counts.trained_steps.items():
        units = (Unit(group_id, index) for index in range(group_size))
        for unit in (unit for unit in units if unit not in counts.left_out):
            if unit not in counts.results:
                yield f"{unit_name(unit)} was trained in step {steps[0]}, but has no result"
            if unit not in counts.rewards:
                yield f"{unit_name(unit)} was trained in step {steps[0]}, but has no reward"


def _schedule_problems(counts: RecordCounts, schedule: Schedule) -> Iterator[str]:
    for step in range(max(counts.batches, default=-1)):
        if step not in counts.batches:
            yield f"step {step} was skipped: it got no batch, but step {max(counts.batches)} did"
    size = schedule.groups_per_step
    for step, group_ids in counts.batches.items():
        if len(group_ids) != size:
            yield f"the batch of step {step} has {len(group_ids)} of {size} groups (groups_per_step)"
    num_open, window = counts.over_window
    if num_open:
        yield f"{num_open} groups were open at once, but the window holds {window}"


# ── parts of the counts ─────────────────────────────────────────────────────────────────────


def cause_of(reason: str) -> str:
    """First part of a reason, before the numbers: `asyncrl.checks.trajectory.CAUSES`."""
    return reason.partition(":")[0]


def _skipped(counts: RecordCounts) -> list[int]:
    return sorted(set(range(max(counts.admitted, default=-1))) - counts.admitted.keys())


def _lengths(group_ids: Iterable[int], counts: RecordCounts, group_size: int) -> list[int]:
    """Completion tokens of every finished trajectory of the groups."""
    return [s.num_tokens for group_id in group_ids for s in counts.summaries_of(group_id, group_size)]


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
