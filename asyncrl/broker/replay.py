"""
Restart of a broker: applies the ledger's records to the books of a fresh scheduler, in order.

    Admitted ─▶ window, groups, batches          Taken ─▶ window, batches           VersionLive ─▶ window, transfers
    Result, Rewarded, FailedAttempt ─▶ slots     Committed, Dropped ─▶ closed       Measured ─▶ evaluation
    Refused, Reissued, LeftOut ─▶ slots          Restarted ─▶ groups, batches       Untrained ─▶ groups
    SamplingPaused ─▶ pause                      SettingsSet ─▶ settings           GoalMet ─▶ steps

State that is not in the ledger is reported by the nodes (leases, who is connected) or starts afresh: ongoing gradings,
the staged version, and the count of groups dropped in a row, whose cause may be repaired by now.
"""

from collections.abc import Iterable

from asyncrl.broker.groups.group import Group, SlotState
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
    NodeEvent,
    Progressed,
    Refused,
    Reissued,
    Restarted,
    Result,
    Rewarded,
    SamplingPaused,
    SettingsSet,
    Started,
    Taken,
    Untrained,
    VersionLive,
    Written,
)
from asyncrl.broker.scheduler import Scheduler
from asyncrl.errors import BrokenInvariant, LedgerError
from asyncrl.messages.supervisor import Evaluated


def replay(scheduler: Scheduler, records: Iterable[AnyRecord]) -> None:
    """
    Bring a fresh scheduler to the state of the one that made ``records``. Makes no records, messages or events.

    The two have the same config and prompts; the fresh one has a higher broker term.

    Raises:
        LedgerError: The records do not fit together, or do not fit the prompts.
        BrokenInvariant: The scheduler is not fresh, or the records break an invariant of its books.
    """
    if scheduler.nodes.all() or scheduler.groups:
        raise BrokenInvariant("replay needs a fresh scheduler: no node may have joined, and no group may be open")
    present: set[str] = set()
    for record in records:
        _apply(scheduler, record)
        if isinstance(record, NodeEvent) and record.role == "rollout":
            (present.add if record.event == "joined" else present.discard)(record.node)
    scheduler.dispatcher.expect(present)
    scheduler.versions.resumed()
    for group in scheduler.groups:
        for index in group.indices(SlotState.STORED):
            scheduler.grading.add(group.slots[index])
        if group.indices(SlotState.MISSING):
            scheduler.dispatcher.wanted(group)
    for group in scheduler.training.batches.complete:
        scheduler.training.filtering.completed(group)


def _apply(scheduler: Scheduler, record: AnyRecord) -> None:
    training = scheduler.training
    match record:
        case Admitted():
            training.opened(training.admission.readmit(record))
        case Progressed() | Result() | Rewarded() | Refused() | LeftOut() | FailedAttempt() | Reissued():
            _apply_to_unit(scheduler, record)
        case Restarted(group_id=group_id, policy_version=version):
            training.restarted(_group(scheduler, group_id), version)
        case Dropped(group_id=group_id, reason=reason):
            training.dropped(_group(scheduler, group_id), reason)
        case Taken(step=step, group_ids=group_ids):
            scheduler.window.consume(step, group_ids)
            training.batches.take(step, [_group(scheduler, group_id) for group_id in group_ids])
        case Untrained(group_id=group_id, reason=reason):
            _group(scheduler, group_id).untrained = reason
        case Committed(step=step):
            training.committed(step)
        case VersionLive(policy_version=version, next_step=next_step):
            scheduler.transfers.restore(version)
            scheduler.versions.went_live(version, next_step)
        case Measured():
            result = Evaluated(record.policy_version, record.accuracy, record.num_prompts, record.metrics)
            scheduler.evaluation.measured(result)
        case SamplingPaused() | SettingsSet() | GoalMet():
            _decide(scheduler, record)
        case Duplicate() | NodeEvent() | Started() | Written():
            pass  # They are for audits, and change no book.


def _decide(scheduler: Scheduler, record: SamplingPaused | SettingsSet | GoalMet) -> None:
    match record:
        case SamplingPaused(is_paused=is_paused, by=by):
            scheduler.settings.pause(is_paused=is_paused, by=by)
        case SettingsSet(values=values, by=by):
            scheduler.settings.apply(values, by)
        case GoalMet(stop_when=stop_when, steps=steps):
            if stop_when == scheduler.config.run.stop_when:  # It may have another goal by now, or none.
                scheduler.end_after(steps)


def _apply_to_unit(
    scheduler: Scheduler, record: Progressed | Result | Rewarded | Refused | LeftOut | FailedAttempt | Reissued
) -> None:
    if record.unit.split == "held_out":  # Its evaluation is measured, or starts again with other ids.
        scheduler.evaluation.used(record.unit.group_id)
        return
    group = _group(scheduler, record.unit.group_id)
    slot = group.slots[record.unit.index]
    match record:
        case Progressed(ref=ref, summary=summary):
            slot.progress(ref, summary)
        case Result(lease_id=lease_id, ref=ref, summary=summary):
            slot.store(ref, summary, lease_id)
        case Rewarded(reward=reward, metrics=metrics):
            slot.score(reward, metrics)
            scheduler.training.scored(group)
        case Refused(lease_id=lease_id):
            slot.refuse(lease_id)
        case LeftOut():
            scheduler.training.left_out(group, slot)
        case FailedAttempt(stage=stage, attempts=attempts):
            slot.attempts = attempts
            if stage == "trainer":
                slot.give_up()
        case Reissued(loses_progress=True):
            slot.discard_progress()


def _group(scheduler: Scheduler, group_id: int) -> Group:
    if (group := scheduler.groups.train.get(group_id)) is None:
        raise LedgerError(f"a record names group {group_id}, which is not open: an earlier record is missing")
    return group
