"""
A trajectory between its nodes: stored by a rollout, graded by a reward node, rewarded or failed.

    Stored ─▶ Result ─▶ queue ─▶ Grade ─▶ reward node ─▶ Scored ─▶ Rewarded
                          ▲                   └─▶ Failed ─▶ graded again, or given up
                          └─────────────────────────┘
"""

from collections.abc import Iterable

from asyncrl.broker.groups.book import GroupBook
from asyncrl.broker.groups.drop_limit import OVERLONG
from asyncrl.broker.groups.group import Group, Slot, State
from asyncrl.broker.leases.credits import CreditBook
from asyncrl.broker.leases.dispatcher import Dispatcher
from asyncrl.broker.leases.grading import GradeBook
from asyncrl.broker.ledger.records import Duplicate, FailedAttempt, Result, Rewarded
from asyncrl.broker.outbox import Outbox
from asyncrl.config.sections import Config
from asyncrl.errors import BrokenInvariant
from asyncrl.messages import Failed, Grade, GradeItem, Leased, ScoredItem, Settled, Stored, StoredItem, Unit


class Trajectories:
    """Takes in results, rewards and failures, and sends stored trajectories to reward nodes."""

    def __init__(
        self, config: Config, groups: GroupBook, dispatcher: Dispatcher, grading: GradeBook, out: Outbox
    ) -> None:
        self._config = config
        self._groups = groups
        self._dispatcher = dispatcher
        self._leases = dispatcher.leases
        self._grading = grading
        self._out = out
        self.credits = CreditBook()

    def stored(self, message: Stored) -> None:
        """Record what is on disk, and answer its sender once the record is on disk too."""
        unfinished = [item for item in message.items if item.summary.finish_reason == "unfinished"]
        finished = [item for item in message.items if item.summary.finish_reason != "unfinished"]
        settled = Settled(_leased(finished), _leased(unfinished))
        self._out.send(f"{message.node}.{message.incarnation}", settled, once_durable=True)
        for item in unfinished:
            self._dispatcher.progressed(item)
        for item in finished:
            self._result(item)

    def rewarded(self, item: ScoredItem) -> Group | None:
        """Record a reward. Returns the trajectory's group; None if the reward is a duplicate or no longer wanted."""
        slot, group = self._graded(item.unit, item.lease_id), self._groups.group(item.unit)
        if slot is None or group is None:
            return None
        slot.score(item.reward, item.metrics, item.answer)
        self._out.record(Rewarded(item.unit, item.reward, item.metrics, group.num_restarts))
        return group

    def failed(self, message: Failed) -> str:
        """
        Record a failed attempt, and arrange the next one.

        Returns:
            Reason to give the trajectory up, after a last attempt; empty in all other cases.
        """
        unit = message.unit
        slot = self._groups.slot(unit)
        if message.stage == "reward":
            if self._graded(unit, message.lease_id) is None:
                return ""
        else:
            self._leases.settle(message.lease_id, unit.index)
        if slot is None or (message.stage == "rollout" and not slot.is_leased_by(message.lease_id)):
            return ""
        slot.attempts += 1
        is_final = not message.retryable or slot.attempts >= self._config.schedule.max_attempts
        self._out.record(FailedAttempt(unit, message.stage, message.reason, slot.attempts, is_final))
        self._out.event(
            "unit.failed",
            split=unit.split,
            group_id=unit.group_id,
            index=unit.index,
            stage=message.stage,
            reason=message.reason,
            is_final=is_final,
        )
        if is_final:
            is_filtered = message.is_overlong and self._config.data.filter_overlong_prompts
            return OVERLONG if is_filtered else f"{message.stage}: {message.reason}"
        if message.stage == "reward":
            self._grading.add(slot)
        else:
            self._dispatcher.failed(slot, message.lease_id)
        return ""

    def grade(self) -> None:
        """Send stored trajectories to reward nodes while these have credits."""
        while self._grading.is_waiting and (node := self.credits.most(1)):
            slots = self._grading.assign(node.peer, node.credits)
            group = self._groups.group(slots[0].unit)
            if group is None:
                raise BrokenInvariant(f"{slots[0].unit} is queued for grading, but its group is not open")
            node.granted += len(slots)
            self.credits.update(node)
            self._out.send(node.peer, Grade(group.prompt, [self._grade_item(slot) for slot in slots]))

    def revoke(self, peer: str) -> None:
        """A node is gone: trajectories it was grading go back to the head of the queue."""
        self.credits.remove(peer)
        self._grading.revoke(peer)

    def _result(self, item: StoredItem) -> None:
        unit = item.unit
        slot, group = self._groups.slot(unit), self._groups.group(unit)
        self._leases.settle(item.lease_id, unit.index)
        is_awaited = slot is not None and slot.state in (State.MISSING, State.LEASED)
        if slot is None or group is None or not is_awaited or self._dispatcher.is_outdated(item, group):
            self._out.record(Duplicate(unit, item.lease_id, item.summary.num_tokens))
            return
        slot.store(item.ref, item.summary)
        self._out.record(Result(unit, item.lease_id, item.ref, item.summary, group.num_restarts))
        self._grading.add(slot)

    def _graded(self, unit: Unit, lease_id: int) -> Slot | None:
        """Take a trajectory out of grading; None if this grading is no longer expected."""
        slot = self._groups.slot(unit)
        return self._grading.settle(unit) if slot and slot.lease_id == lease_id else None

    def _grade_item(self, slot: Slot) -> GradeItem:
        if slot.ref is None:
            raise BrokenInvariant(f"{slot.unit} is queued for grading, but is not stored")
        slot.lease_id = self._leases.next_id()
        return GradeItem(slot.unit, slot.lease_id, slot.ref)


def _leased(items: Iterable[StoredItem]) -> list[Leased]:
    return [Leased(item.unit, item.lease_id) for item in items]
