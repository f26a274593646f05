"""
A broker that starts again is where it was: the ledger's records, applied to the books from the first to the last.

    Admitted ─▶ window, groups, batches          Taken ─▶ window, batches           VersionLive ─▶ window, publishing
    Result, Verdict, FailedAttempt ─▶ slots      Committed, Dropped ─▶ forgotten    Measured ─▶ evaluation
    Restarted ─▶ groups, batches

What is not in the ledger is told by the nodes (leases in hand, who is connected) or begins anew: gradings in hand,
which version lies staged, and the count of groups dropped in a row, whose cause may have been repaired meanwhile.
"""

from collections.abc import Iterable

from asyncrl.broker.groups.group import Group, State
from asyncrl.broker.ledger.records import (
    Admitted,
    AnyRecord,
    Committed,
    Dropped,
    Duplicate,
    FailedAttempt,
    Measured,
    NodeEvent,
    Progressed,
    Reissued,
    Restarted,
    Result,
    Rewarded,
    Taken,
    VersionLive,
)
from asyncrl.broker.scheduler import Scheduler
from asyncrl.errors import BrokenInvariant, LedgerError
from asyncrl.messages import Evaluated


def replay(scheduler: Scheduler, records: Iterable[AnyRecord]) -> None:
    """
    Bring a fresh scheduler to where the one that made ``records`` was. Nothing is recorded or said.

    Args:
        scheduler: Nobody has joined yet. Of the same config and prompts, with a higher broker epoch.
        records: All of a ledger, in order.

    Raises:
        LedgerError: The records do not fit together, or not with the prompts.
        BrokenInvariant: The scheduler is not fresh, or the records break a promise of its books.
    """
    if scheduler.nodes.all() or scheduler.groups:
        raise BrokenInvariant("records are replayed before anybody joins")
    present: set[str] = set()
    for record in records:
        _apply(scheduler, record)
        if isinstance(record, NodeEvent) and record.role == "rollout":
            (present.add if record.event == "joined" else present.discard)(record.node)
    scheduler.dispatcher.expect(present)
    for group in scheduler.groups.values():
        for index in group.indices(State.STORED):
            scheduler.grading.add(group.slots[index])
        if group.indices(State.MISSING):
            scheduler.dispatcher.wanted(group)
    for group in scheduler.batches.complete:
        scheduler.filtering.completed(group)


def _apply(scheduler: Scheduler, record: AnyRecord) -> None:
    match record:
        case Admitted():
            scheduler.opened(scheduler.admission.readmit(record))
        case Progressed() | Result() | Rewarded() | FailedAttempt():
            _apply_to_unit(scheduler, record)
        case Restarted(group_id=group_id, policy_version=version):
            scheduler.restarted(_group(scheduler, group_id), version)
        case Dropped(group_id=group_id, reason=reason):
            scheduler.dropped(_group(scheduler, group_id), reason)
        case Taken(step=step, group_ids=group_ids):
            scheduler.window.consume(step, group_ids)
            scheduler.batches.take(step, [_group(scheduler, group_id) for group_id in group_ids])
        case Committed(step=step):
            scheduler.committed(step)
        case VersionLive(policy_version=version, next_step=next_step):
            scheduler.transfers.live_version = version
            scheduler.versions.went_live(version, next_step)
        case Measured():
            result = Evaluated(record.policy_version, record.accuracy, record.num_prompts, record.metrics)
            scheduler.evaluation.measured(result)
        case Duplicate() | Reissued() | NodeEvent():
            pass  # For people: nothing follows from them.


def _apply_to_unit(scheduler: Scheduler, record: Progressed | Result | Rewarded | FailedAttempt) -> None:
    if record.unit.split == "held_out":  # Its evaluation was measured, or begins anew with other ids.
        scheduler.evaluation.used(record.unit.group_id)
        return
    group = _group(scheduler, record.unit.group_id)
    slot = group.slots[record.unit.index]
    match record:
        case Progressed(ref=ref, summary=summary):
            slot.progress(ref, summary)
        case Result(ref=ref, summary=summary):
            slot.store(ref, summary)
        case Rewarded(reward=reward, metrics=metrics):
            slot.judge(reward, metrics)
            scheduler.scored(group)
        case FailedAttempt(stage=stage, attempts=attempts):
            slot.attempts = attempts
            if stage == "rollout":
                slot.begin_anew()


def _group(scheduler: Scheduler, group_id: int) -> Group:
    if (group := scheduler.groups.get(group_id)) is None:
        raise LedgerError(f"the ledger speaks of group {group_id}, which is not open: a record before it is missing")
    return group
