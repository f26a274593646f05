"""
Six bugs that a tired person could write, each planted in the real code, and the search for a seed that catches it.

A simulation that finds nothing proves nothing, unless it is known to find what is there.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from msgspec.structs import replace

from asyncrl.broker.groups.admission import AdmissionBook
from asyncrl.broker.groups.batches import BatchBook
from asyncrl.broker.groups.group import Group, State
from asyncrl.broker.groups.window import Window
from asyncrl.broker.leases.waiting import WaitingGroups
from asyncrl.broker.ledger.records import Admitted
from asyncrl.broker.scheduler import Scheduler
from asyncrl.messages import Stored, StoredItem
from tests.simulation import broker_node

DONE = (State.STORED, State.SCORED)


def lost_ack() -> Any:
    """What was stored before is not answered again: "a repeat, nothing to do"."""
    stored = Scheduler._stored

    def mutated(self: Scheduler, message: Stored) -> None:
        slots = [(item, self.dispatcher.slot(item.unit)) for item in message.items]
        fresh = [item for item, slot in slots if slot and slot.state not in DONE]
        stored(self, replace(message, items=fresh))

    return mock.patch.object(Scheduler, "_stored", mutated)


def double_settle() -> Any:
    """A second result of a unit takes the place of the first."""
    result = Scheduler._result

    def mutated(self: Scheduler, item: StoredItem) -> None:
        if (slot := self.dispatcher.slot(item.unit)) and slot.state in DONE:
            slot.state = State.LEASED
        result(self, item)

    return mock.patch.object(Scheduler, "_result", mutated)


def forgotten_lease() -> Any:
    """A broker that starts again thinks that what was leased still is."""
    replay = broker_node.replay

    def mutated(scheduler: Scheduler, records: Any) -> None:
        replay(scheduler, records)
        scheduler.dispatcher.unleased = WaitingGroups()

    return mock.patch.object(broker_node, "replay", mutated)


def window_freed_early() -> Any:
    """Groups leave the window when a step takes them, before the weights it makes are live."""
    consume = Window.consume

    def mutated(self: Window, step: int, group_ids: list[int]) -> None:
        consume(self, step, group_ids)
        self.live(step + 1)

    return mock.patch.object(Window, "consume", mutated)


def duplicate_trained() -> Any:
    """One group of a batch stays where the next batch is taken from."""
    take = BatchBook.take

    def mutated(self: BatchBook, step: int, groups: list[Group]) -> None:
        take(self, step, groups)
        self.admitted(groups[-1])
        self.completed(groups[-1])

    return mock.patch.object(BatchBook, "take", mutated)


def cursor_ahead() -> Any:
    """A broker that starts again goes on one prompt too late."""
    readmit = AdmissionBook.readmit

    def mutated(self: AdmissionBook, record: Admitted) -> Group:
        group = readmit(self, record)
        self.next_group_id += 1
        return group

    return mock.patch.object(AdmissionBook, "readmit", mutated)


MUTANTS: dict[str, Callable[[], Any]] = {
    mutant.__name__: mutant
    for mutant in (lost_ack, double_settle, forgotten_lease, window_freed_early, duplicate_trained, cursor_ahead)
}


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """The product has this bug, as long as this is entered; an empty name plants nothing."""
    if not name:
        yield
        return
    with MUTANTS[name]():
        yield
