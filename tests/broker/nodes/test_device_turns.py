import pytest

from asyncrl.broker.nodes.device_turns import DeviceTurnBook
from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.broker.outbox import Outbox
from asyncrl.messages.session import AskTurn, Asleep, Hello, Ready, Sleep, Wake
from asyncrl.messages.wire import PROTOCOL
from asyncrl.messages.words import Role


class Devices:
    """A trainer and two rollouts at shared devices; time passes by hand."""

    def __init__(self, *, is_used: bool = True) -> None:
        self.nodes, self.out, self.now_s, self.may_train = NodeBook(), Outbox(), 0.0, True
        self.turns = DeviceTurnBook(self.nodes, self.out, is_used=is_used)
        self.trainer, self.a, self.b = self.join("trainer", "t"), self.join("rollout", "a"), self.join("rollout", "b")

    def join(self, role: Role, name: str) -> Node:
        node = self.nodes.join(f"{name}.0", Hello(PROTOCOL, role, name, "0"), self.now_s)
        self.turns.joined(node)
        return node

    def say(self, node: Node, *messages: Asleep | AskTurn) -> None:
        for message in messages:
            if isinstance(message, AskTurn):
                self.turns.asks(node.peer)
            else:
                self.turns.asleep(message, node.peer, self.now_s)
            self.turns.advance(may_train=lambda: self.may_train, now_s=self.now_s)

    def sent(self) -> list[tuple[str, type]]:
        messages, _, self.events = self.out.drain()
        return [(outgoing.peer, type(outgoing.message)) for outgoing in messages]

    def leave(self, node: Node) -> None:
        self.nodes.leave(node.peer)
        self.turns.departed(node.peer, self.now_s)
        self.turns.advance(may_train=lambda: self.may_train, now_s=self.now_s)


@pytest.fixture
def devices() -> Devices:
    """It is the rollouts' turn, and the trainer sleeps."""
    devices = Devices()
    for node in (devices.trainer, devices.a, devices.b):
        devices.say(node, Asleep())
    devices.say(devices.a, AskTurn())
    devices.say(devices.b, AskTurn())
    devices.nodes.ready(devices.a, Ready())
    devices.nodes.ready(devices.b, Ready())
    assert devices.sent() == [("a.0", Wake), ("b.0", Wake)]
    return devices


def test_a_node_that_joined_counts_as_awake_until_it_says_otherwise() -> None:
    devices = Devices()
    devices.say(devices.a, Asleep(), AskTurn())
    assert devices.sent() == [], "the trainer may have memory of an earlier session there"
    devices.say(devices.trainer, Asleep())
    assert devices.sent() == [("a.0", Wake)]


def test_the_trainer_is_woken_once_every_rollout_sleeps(devices):
    devices.say(devices.trainer, AskTurn())
    assert devices.sent() == [("a.0", Sleep), ("b.0", Sleep)]
    devices.say(devices.a, Asleep(), AskTurn())
    assert devices.sent() == []
    devices.say(devices.b, Asleep(), AskTurn())
    assert devices.sent() == [("t.0", Wake)]


def test_rollouts_are_told_to_sleep_once(devices):
    devices.say(devices.trainer, AskTurn())
    devices.say(devices.trainer, AskTurn())
    assert devices.sent() == [("a.0", Sleep), ("b.0", Sleep)]


def test_the_trainer_waits_until_rollouts_are_at_rest(devices):
    devices.may_train = False
    devices.say(devices.trainer, AskTurn())
    assert devices.sent() == []
    assert devices.turns.rollouts_may_swap
    devices.may_train = True
    devices.turns.advance(may_train=lambda: True, now_s=0.0)
    assert devices.sent() == [("a.0", Sleep), ("b.0", Sleep)]
    assert not devices.turns.rollouts_may_swap


def train(devices: Devices) -> None:
    devices.say(devices.trainer, AskTurn())
    for node in (devices.a, devices.b):
        devices.say(node, Asleep(1.5, 100), AskTurn())
    devices.sent()


def test_rollouts_are_woken_by_the_end_of_the_trainers_turn(devices):
    train(devices)
    assert not devices.turns.rollouts_may_swap
    devices.say(devices.trainer, Asleep())
    assert devices.sent() == [("a.0", Wake), ("b.0", Wake)]
    assert devices.turns.rollouts_may_swap


def test_each_turn_is_measured(devices):
    devices.now_s = 10.0
    devices.say(devices.trainer, AskTurn())
    devices.now_s = 12.0
    devices.say(devices.a, Asleep(0.5, 100), AskTurn())
    devices.say(devices.b, Asleep(1.5, 200), AskTurn())
    devices.sent()
    (rollouts,) = devices.events
    devices.now_s = 15.0
    devices.say(devices.trainer, Asleep(0.25, 7))
    devices.sent()
    (trainer,) = devices.events
    assert rollouts.fields == {"role": "rollout", "seconds": 12.0, "moved_s": 1.5, "num_bytes": 300}
    assert trainer.fields == {"role": "trainer", "seconds": 3.0, "moved_s": 0.25, "num_bytes": 7}


def test_a_trainer_that_is_lost_in_its_turn_leaves_the_devices_to_rollouts(devices):
    train(devices)
    devices.leave(devices.trainer)
    assert devices.sent() == [("a.0", Wake), ("b.0", Wake)]


def test_a_rollout_that_is_lost_is_not_waited_for(devices):
    devices.say(devices.trainer, AskTurn())
    devices.say(devices.a, Asleep(), AskTurn())
    devices.sent()
    devices.leave(devices.b)
    assert devices.sent() == [("t.0", Wake)]


def test_a_rollout_that_joins_in_the_trainers_turn_waits_for_its_end(devices):
    train(devices)
    late = devices.join("rollout", "c")
    devices.say(late, Asleep(), AskTurn())
    assert devices.sent() == []
    devices.say(devices.trainer, Asleep())
    assert devices.sent() == [("a.0", Wake), ("b.0", Wake), ("c.0", Wake)]


def test_where_devices_are_not_shared_nobody_waits() -> None:
    devices = Devices(is_used=False)
    assert devices.turns.rollouts_may_swap
    assert not devices.turns.advance(may_train=lambda: True, now_s=0.0)
    assert devices.sent() == []
