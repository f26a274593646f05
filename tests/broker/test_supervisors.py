"""What supervisors are told, also those that join later."""

import pytest

from asyncrl.actor.message import Message
from asyncrl.broker.failures import FailureBook
from asyncrl.broker.nodes.node import NodeBook
from asyncrl.broker.outbox import Outbox
from asyncrl.broker.pause import PauseBook
from asyncrl.broker.supervisors import Supervisors
from asyncrl.messages.session import Hello
from asyncrl.messages.supervisor import Failures, Paused
from asyncrl.messages.wire import PROTOCOL

CAUSE = "reward: KeyError: 'answer' (score.py:3)"


class Office:
    def __init__(self) -> None:
        self.nodes, self.failures, self.pause, self.out = NodeBook(), FailureBook(), PauseBook(), Outbox()
        self.supervisors = Supervisors(self.nodes, self.failures, self.pause, self.out)

    def join(self, name: str) -> None:
        self.supervisors.joined(self.nodes.join(name, Hello(PROTOCOL, "supervisor", name, "0"), 0.0))

    def fail(self, times: int) -> None:
        self.failures.count("reward", CAUSE.removeprefix("reward: "), times)

    def told(self) -> list[tuple[str, Message]]:
        messages, _, self.events = self.out.drain()
        return [(outgoing.peer, outgoing.message) for outgoing in messages]


@pytest.fixture
def office() -> Office:
    return Office()


def test_all_supervisors_are_told(office: Office) -> None:
    office.join("a")
    office.join("b")
    office.supervisors.tell(Paused(True, "alice"))
    assert office.told() == [("a", Paused(True, "alice")), ("b", Paused(True, "alice"))]


def test_a_supervisor_of_a_healthy_run_is_told_nothing_when_it_joins(office: Office) -> None:
    office.join("a")
    assert office.told() == []


def test_one_that_joins_later_is_told_of_the_pause_and_of_what_failed(office: Office) -> None:
    office.pause.set(is_paused=True, by="alice")
    office.fail(3)
    office.join("a")
    assert office.told() == [("a", Failures({CAUSE: 3}, {"reward": 3})), ("a", Paused(True, "alice"))]


def test_failures_are_told_once_and_are_events(office: Office) -> None:
    office.join("a")
    office.fail(2)
    office.supervisors.tell_failures(0.0)
    assert office.told() == [("a", Failures({CAUSE: 2}, {"reward": 2}))]
    assert [(event.kind, event.fields["count"]) for event in office.events] == [("units.failed", 2)]

    office.supervisors.tell_failures(1000.0)
    assert office.told() == []
    assert office.events == []
