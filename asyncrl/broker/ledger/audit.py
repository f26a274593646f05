"""
What happened to the data of a run, from its ledger alone.

    issued = trained + dropped (by reason) + open        skipped 0        double-trained 0

Every group that was admitted is in exactly one place; the ids are dense; a step takes whole groups, each trajectory of
which has one result and one verdict; and no more groups were open at once than the window holds. Where one of these
does not hold, a sentence says of which group. It may be asked of a run that still goes on, or was killed.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import Struct

from asyncrl.broker.ledger.accounts import Accounts
from asyncrl.broker.ledger.records import AnyRecord
from asyncrl.config.sections import Schedule
from asyncrl.messages import Unit

SHORTEST_BUCKET = 16
"""Tokens. What is shorter needs no closer look."""


class LengthBucket(Struct, frozen=True, kw_only=True):
    """Trajectories of about one length: if long ones are thrown away more often than short ones, training is biased."""

    max_tokens: int
    """Completion tokens of the longest in here: 16, or a power of two above; the bucket below ends at its half."""
    trained: int
    dropped: int
    """Finished ones of dropped groups."""
    restarted: int = 0
    """Thrown away because their group began anew, by what was on disk of them then."""


class Audit(Struct, frozen=True, kw_only=True):
    """
    The accounts of a run.

    Groups, trained tokens, lengths and staleness are of the training data; attempts, duplicates, dead letters and
    tokens thrown away include the held-out prompts.
    """

    steps: int
    """That were given a batch."""
    issued: int
    """Groups admitted."""
    trained: int
    """Groups in the batch of a step."""
    committed: int
    """Those of them in a step that a checkpoint holds."""
    dropped: dict[str, int]
    """Groups that ended untrained, by reason, most frequent first."""
    open: int
    """Groups admitted, and neither trained nor dropped."""
    restarted: int = 0
    """How often a group became too old to be trained on, and began anew."""
    skipped: int
    """Group ids below the newest that were never admitted."""
    double_trained: int
    """Groups in more than one batch."""
    peak_open: int
    """Most groups open at once. A trained group is open until the weights it made are live."""
    window: int
    """How many may be."""
    reissued: dict[str, int]
    """Trajectories leased again, by cause, most frequent first."""
    duplicates: int
    """Trajectories of units that had one, or were no longer wanted."""
    failed_attempts: dict[str, int]
    """By stage."""
    dead_letters: int
    """Units that failed for good."""
    tokens_trained: int
    """Completion tokens."""
    tokens_thrown_away: dict[str, int]
    """Completion tokens of dropped groups, of duplicates, and of trajectories and groups begun anew."""
    staleness_max: int
    """Versions; 0 if nothing was trained."""
    staleness: dict[int, int]
    """Trained trajectories by staleness."""
    over_max_staleness: int = 0
    """Trained trajectories older than ``schedule.max_staleness``."""
    lengths: list[LengthBucket]
    """Shortest first."""
    dropped_unfinished: int
    """Trajectories of dropped groups that have no result, so that their length is unknown."""
    problems: list[str]
    """What does not add up, a sentence each. Empty: everything does."""


def audit(records: Iterable[AnyRecord], schedule: Schedule) -> Audit:
    """
    Add up a ledger.

    Args:
        records: All of them, in order; gone through once.
        schedule: What the run was to keep. Step s trains version s // T, whether or not that one went live.
    """
    group_size, max_staleness = schedule.group_size, schedule.max_staleness
    accounts = Accounts()
    for record in records:
        accounts.add(record)
    trained, dropped = accounts.steps_of, accounts.drops
    trained_lengths = _lengths_of(trained, accounts, group_size)
    dropped_lengths = _lengths_of(dropped, accounts, group_size)
    staleness = accounts.staleness(group_size, schedule.steps_per_publish)
    over_max_staleness = (
        0 if max_staleness is None else sum(num for versions, num in staleness.items() if versions > max_staleness)
    )
    return Audit(
        steps=len(accounts.batches),
        issued=len(accounts.admitted),
        trained=len(trained),
        committed=sum(min(steps) <= accounts.committed_step for steps in trained.values()),
        dropped=_by_frequency(Counter(reasons[0] for reasons in dropped.values())),
        open=len(accounts.admitted.keys() - trained.keys() - dropped.keys()),
        restarted=accounts.restarts.total(),
        skipped=len(_skipped(accounts)),
        double_trained=sum(len(steps) > 1 for steps in trained.values()),
        peak_open=accounts.peak_open,
        window=schedule.window,
        reissued=_by_frequency(accounts.reissued),
        duplicates=accounts.num_duplicates,
        failed_attempts=_by_frequency(accounts.failed_attempts),
        dead_letters=accounts.num_dead_letters,
        tokens_trained=sum(trained_lengths),
        tokens_thrown_away=dict(accounts.thrown_away),
        staleness_max=max(staleness, default=0),
        staleness=dict(sorted(staleness.items())),
        over_max_staleness=over_max_staleness,
        lengths=_buckets(trained_lengths, dropped_lengths, accounts.restarted_lengths),
        dropped_unfinished=group_size * len(dropped) - len(dropped_lengths),
        problems=[
            *_wrong_groups(accounts),
            *_wrong_units(accounts, group_size),
            *_wrong_batches(accounts, schedule.groups_per_step),
            *_wrong_window(accounts, schedule.window),
            *_wrong_ages(max_staleness, 0 if schedule.on_straggler == "train" else over_max_staleness),
        ],
    )


# ── what does not add up ────────────────────────────────────────────────────────────────────


def _wrong_groups(accounts: Accounts) -> Iterator[str]:
    admitted, trained, dropped = accounts.admitted, accounts.steps_of, accounts.drops
    for group_id in _skipped(accounts):
        yield f"group {group_id} was skipped: it was never admitted, but group {max(admitted)} was"
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
    for group_id in accounts.wrong_restarts:
        yield f"group {group_id} began anew, but it was not open"


def _wrong_units(accounts: Accounts, group_size: int) -> Iterator[str]:
    for unit, times in accounts.results.items():
        if times > 1:
            yield f"{_named(unit)} has {times} results"
        if unit.split == "train" and unit.group_id not in accounts.admitted:
            yield f"{_named(unit)} has a result, but group {unit.group_id} was never admitted"
    for unit, times in accounts.verdicts.items():
        if times > 1:
            yield f"{_named(unit)} has {times} verdicts"
    for group_id, steps in accounts.steps_of.items():
        for unit in (Unit(group_id, index) for index in range(group_size)):
            if unit not in accounts.results:
                yield f"{_named(unit)} was trained in step {steps[0]}, but has no result"
            if unit not in accounts.verdicts:
                yield f"{_named(unit)} was trained in step {steps[0]}, but has no verdict"


def _wrong_batches(accounts: Accounts, groups_per_step: int) -> Iterator[str]:
    for step in range(max(accounts.batches, default=-1)):
        if step not in accounts.batches:
            yield f"step {step} was skipped: it was given no batch, but step {max(accounts.batches)} was"
    for step, group_ids in accounts.batches.items():
        if len(group_ids) != groups_per_step:
            yield f"the batch of step {step} has {len(group_ids)} of {groups_per_step} groups (groups_per_step)"


def _wrong_window(accounts: Accounts, window: int) -> Iterator[str]:
    if accounts.peak_open > window:
        yield f"{accounts.peak_open} groups were open at once, but the window holds {window}"


def _wrong_ages(max_staleness: int | None, num_over: int) -> Iterator[str]:
    if num_over:
        yield f"{num_over} trained trajectories were older than {max_staleness} versions (max_staleness)"


# ── parts of the sums ───────────────────────────────────────────────────────────────────────


def _skipped(accounts: Accounts) -> list[int]:
    return sorted(set(range(max(accounts.admitted, default=-1))) - accounts.admitted.keys())


def _named(unit: Unit) -> str:
    return f"unit {unit.group_id}/{unit.index}{' (held-out)' if unit.split == 'held_out' else ''}"


def _by_frequency(counter: Counter[str]) -> dict[str, int]:
    return dict(counter.most_common())


def _lengths_of(group_ids: Iterable[int], accounts: Accounts, group_size: int) -> list[int]:
    """Completion tokens of every finished trajectory of these groups."""
    return [s.num_tokens for group_id in group_ids for s in accounts.summaries_of(group_id, group_size)]


def _buckets(trained: list[int], dropped: list[int], restarted: list[int]) -> list[LengthBucket]:
    """Every bucket up to the longest, the empty ones too."""
    num_trained, num_dropped, num_restarted = (Counter(map(_bucket, some)) for some in (trained, dropped, restarted))
    longest = max((*num_trained, *num_dropped, *num_restarted), default=0)
    bounds = [SHORTEST_BUCKET << i for i in range((longest // SHORTEST_BUCKET).bit_length())]
    return [
        LengthBucket(max_tokens=n, trained=num_trained[n], dropped=num_dropped[n], restarted=num_restarted[n])
        for n in bounds
    ]


def _bucket(num_tokens: int) -> int:
    return max(SHORTEST_BUCKET, 1 << max(num_tokens - 1, 0).bit_length())
