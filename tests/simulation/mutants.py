"""Plausible bugs that are planted in the real code, to show that the simulation finds them."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

from msgspec.structs import replace

from asyncrl.broker.groups.admission import AdmissionBook, Window
from asyncrl.broker.groups.batches import BatchBook
from asyncrl.broker.groups.group import Group, Slot, SlotState
from asyncrl.broker.leases.dispatcher import Dispatcher
from asyncrl.broker.leases.grading import GradeBook
from asyncrl.broker.leases.lease import WaitingGroups
from asyncrl.broker.leases.trajectories import Trajectories
from asyncrl.broker.ledger.records import Admitted, Reissued
from asyncrl.broker.replay import replay
from asyncrl.broker.scheduler import Scheduler
from asyncrl.messages.rollout import StartedOver
from asyncrl.messages.spool import Stored, StoredItem
from asyncrl.messages.trajectory import Unit
from tests.simulation import broker_node

DONE = (SlotState.STORED, SlotState.SCORED)


def lost_ack() -> Any:
    """Stored trajectories that are reported again are not answered."""
    stored = Trajectories.stored

    def mutated(self: Trajectories, message: Stored, spool: str) -> list[tuple[Unit, str]]:
        slots = [(item, self._groups.slot(item.unit)) for item in message.items]
        fresh = [item for item, slot in slots if slot and slot.state not in DONE]
        return stored(self, replace(message, items=fresh), spool)

    return mock.patch.object(Trajectories, "stored", mutated)


def double_settle() -> Any:
    """A second result of a unit replaces the first."""
    result = Trajectories._result

    def mutated(self: Trajectories, item: StoredItem) -> str:
        if (slot := self._groups.slot(item.unit)) and slot.state in DONE:
            slot.state = SlotState.LEASED
        return result(self, item)

    return mock.patch.object(Trajectories, "_result", mutated)


def forgotten_lease() -> Any:
    """A restarted broker leases nothing that was leased before."""

    def mutated(scheduler: Scheduler, records: Any) -> None:
        replay(scheduler, records)
        scheduler.dispatcher.unleased = WaitingGroups()

    return mock.patch.object(broker_node, "replay", mutated)


def window_freed_early() -> Any:
    """Groups leave the window when a step takes them, before the weights of the step are live."""
    consume = Window.consume

    def mutated(self: Window, step: int, group_ids: list[int]) -> None:
        consume(self, step, group_ids)
        self.live(step + 1)

    return mock.patch.object(Window, "consume", mutated)


def duplicate_trained() -> Any:
    """One group of a batch stays available for the next batch."""
    take = BatchBook.take

    def mutated(self: BatchBook, step: int, groups: list[Group]) -> None:
        take(self, step, groups)
        self.admitted(groups[-1])
        self.completed(groups[-1])

    return mock.patch.object(BatchBook, "take", mutated)


def cursor_ahead() -> Any:
    """A restarted broker skips one prompt."""
    readmit = AdmissionBook.readmit

    def mutated(self: AdmissionBook, record: Admitted) -> Group:
        group = readmit(self, record)
        self.next_group_id += 1
        return group

    return mock.patch.object(AdmissionBook, "readmit", mutated)


def forgotten_turns() -> Any:
    """A lost lease takes the turns on disk with it, and no record says so."""
    missing = Dispatcher._mark_missing

    def mutated(self: Dispatcher, slot: Slot, *arguments: Any) -> None:
        slot.discard_progress()
        missing(self, slot, *arguments)

    return mock.patch.object(Dispatcher, "_mark_missing", mutated)


def resumed_after_loss() -> Any:
    """Turns whose environment is lost are continued by the next lease."""

    def mutated(self: Trajectories, message: StartedOver, peer: str) -> None:
        cause, tokens = "environment_lost", message.num_tokens
        self._out.record(Reissued(message.unit, message.lease_id, cause, tokens))

    return mock.patch.object(Trajectories, "started_over", mutated)


@contextlib.contextmanager
def judged_in_parts() -> Iterator[None]:
    """Those of a group that are stored are judged, without the others, and nobody notices that some are missing."""

    def mutated(self: GradeBook, slot: Slot) -> Sequence[Slot]:
        group = self._whole.group(slot.unit) if self._whole else None
        return [each for each in group.kept if each.state is SlotState.STORED] if group else (slot,)

    with (
        mock.patch.object(GradeBook, "_together", mutated),
        mock.patch.object(Trajectories, "incomplete", return_value=None),
    ):
        yield


MUTANTS: dict[str, Callable[[], Any]] = {
    mutant.__name__: mutant
    for mutant in (
        lost_ack,
        double_settle,
        forgotten_lease,
        window_freed_early,
        duplicate_trained,
        cursor_ahead,
        forgotten_turns,
        resumed_after_loss,
        judged_in_parts,
    )
}


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant the bug inside the context; an empty name plants none."""
    if not name:
        yield
        return
    with MUTANTS[name]():
        yield
