"""
Audit of a run's data from its ledger alone. The run may still be going on, or may have been killed.

    issued = trained + untrained (by cause) + dropped (by reason) + open        skipped 0        double-trained 0

Checked: every admitted group is in exactly one of these four places; group ids are consecutive, but for retired
prompts; a step takes whole groups, each trajectory of which has one result and one reward, or was left out with its
reason; the window never held more groups than it may; and each record was possible after those before it: versions,
staleness, rewards, commits. The rules are in `asyncrl.broker.ledger.rules`; `Audit.problems` has one sentence for each
violation.
`asyncrl.broker.audit` compares the ledger with the run's other files.
"""

import math
from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

from asyncrl.broker.ledger.records import AnyRecord
from asyncrl.broker.ledger.rules import RecordRules, end_problems, skipped_groups
from asyncrl.broker.ledger.state import LedgerState
from asyncrl.config.sections.schedule import Schedule

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
