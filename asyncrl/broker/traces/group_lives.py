"""
Spans of all open training groups, from what the broker decides: its records, leases and gradings.

    scheduler.drain() ─▶ records, messages ─▶ observe ─▶ spans that have ended
                                   │
                                   └─ Admitted ─▶ open ─▶ its version is live, Dropped or Untrained ─▶ forgotten

Pure: the time is an argument. Held-out groups have no spans.
"""

from collections.abc import Iterable, Mapping

from asyncrl.broker.ledger.records import (
    Admitted,
    AnyRecord,
    Dropped,
    FailedAttempt,
    Progressed,
    Reissued,
    Restarted,
    Result,
    Rewarded,
    Taken,
    Untrained,
    VersionLive,
)
from asyncrl.broker.outbox import Outgoing
from asyncrl.broker.traces.group_life import GroupLife
from asyncrl.broker.traces.ids import TraceIds
from asyncrl.messages.reward import Grade
from asyncrl.messages.rollout import Lease
from asyncrl.messages.trajectory import Unit
from asyncrl.observe.traces.span import Attribute, Span

UnitRecord = Progressed | Result | Rewarded | FailedAttempt | Reissued


class GroupLives:
    """
    The open groups of one life of the broker.

    Args:
        now_s: Unix time, as in all calls.
        untaken: Groups that an earlier broker admitted, and no step has taken.
        taken: Groups of each step that was taken and whose weights are not live.
    """

    def __init__(
        self, ids: TraceIds, now_s: float, untaken: Iterable[int] = (), taken: Mapping[int, Iterable[int]] | None = None
    ) -> None:
        self._ids = ids
        self._open: dict[int, GroupLife] = {}
        self._taken: dict[int, list[int]] = {}
        """Open groups by the step that took them."""
        self._ended: list[Span] = []
        for group_id in untaken:
            self._opened(group_id, now_s, resumed=True)
        for step, group_ids in (taken or {}).items():
            self._taken[step] = list(group_ids)
            for group_id in group_ids:
                self._opened(group_id, now_s, resumed=True).trains(step, now_s)

    def __len__(self) -> int:
        return len(self._open)

    def observe(self, outbox: Iterable[Outgoing], records: Iterable[AnyRecord], now_s: float) -> list[Span]:
        """Take in one output of the scheduler. Returns the spans that end with it."""
        for record in records:
            self._recorded(record, now_s)
        for outgoing in outbox:  # What they ask for follows from the records.
            self._sent(outgoing, now_s)
        return self._take()

    def stepped(self, step: int, now_s: float) -> list[Span]:
        """The trainer has done a step. Returns the spans that end with it."""
        for group_id in self._taken.get(step, ()):
            if life := self._open.get(group_id):
                life.stepped(step, now_s)
        return self._take()

    def stop(self, now_s: float) -> list[Span]:
        """The broker stops. Returns the spans that are still open, which end here."""
        for life in self._open.values():
            life.over("open", "", now_s)
        self._open.clear()
        return self._take()

    def _take(self) -> list[Span]:
        # The lives append to this list, so it is emptied and not replaced.
        ended = self._ended[:]
        self._ended.clear()
        return ended

    def _opened(self, group_id: int, now_s: float, **attributes: Attribute) -> GroupLife:
        self._open[group_id] = life = GroupLife(group_id, self._ids, now_s, self._ended, **attributes)
        return life

    def _over(self, group_id: int, outcome: str, error: str, now_s: float) -> None:
        if life := self._open.pop(group_id, None):
            life.over(outcome, error, now_s)

    def _life(self, unit: Unit) -> GroupLife | None:
        return self._open.get(unit.group_id) if unit.split == "train" else None

    def _recorded(self, record: AnyRecord, now_s: float) -> None:
        match record:
            case Progressed() | Result() | Rewarded() | FailedAttempt() | Reissued():
                if life := self._life(record.unit):
                    _told(life, record, now_s)
            case Admitted(group_id=group_id, epoch=epoch, row=row, policy_version=version):
                self._opened(group_id, now_s, epoch=epoch, row=row, policy_version=version)
            case Restarted(group_id=group_id, policy_version=version, lengths=lengths):
                if life := self._open.get(group_id):
                    life.restarted(version, sum(lengths), now_s)
            case Dropped(group_id=group_id, reason=reason):
                self._over(group_id, "dropped", reason, now_s)
            case Untrained(group_id=group_id, reason=reason):
                self._over(group_id, "untrained", reason, now_s)
            case Taken(step=step, group_ids=group_ids):
                self._taken[step] = group_ids
                for group_id in group_ids:
                    if life := self._open.get(group_id):
                        life.taken(step, now_s)
            case VersionLive():
                self._live(record, now_s)

    def _live(self, record: VersionLive, now_s: float) -> None:
        for step in [step for step in self._taken if step < record.next_step]:
            for group_id in self._taken.pop(step):
                if life := self._open.pop(group_id, None):
                    life.live(record.policy_version, now_s)

    def _sent(self, outgoing: Outgoing, now_s: float) -> None:
        match outgoing.message:
            case Lease(lease_id=lease_id, group_id=group_id, indices=indices, split="train"):
                if life := self._open.get(group_id):
                    for index in indices:
                        life.leased(index, lease_id, _node(outgoing.peer), now_s)
            case Grade(items=items):
                for item in items:
                    if life := self._life(item.unit):
                        life.assigned(item.unit.index, _node(outgoing.peer), now_s)


def _told(life: GroupLife, record: UnitRecord, now_s: float) -> None:
    index = record.unit.index
    match record:
        case Progressed(summary=summary):
            life.progressed(index, summary.num_tokens, now_s)
        case Result(lease_id=lease_id, summary=summary):
            life.stored(index, lease_id, summary, now_s)
        case Rewarded(reward=reward):
            life.rewarded(index, reward, now_s)
        case FailedAttempt():
            life.failed(record, now_s)
        case Reissued():
            life.reissued(record, now_s)


def _node(peer: str) -> str:
    """Name of a node from that of its session, which is NODE.INCARNATION."""
    return peer.rpartition(".")[0]
