"""Every message to the broker has one handler, and a new one needs three places: its row, its handler, its sender."""

from pathlib import Path

import pytest
from msgspec.msgpack import Encoder

from asyncrl.broker.handlers import Handlers, rule
from asyncrl.broker.nodes.node import Node
from asyncrl.broker.scheduler import Scheduler
from asyncrl.errors import BrokenInvariant
from asyncrl.messages import bounds
from asyncrl.messages.codec import Codec, Envelope, Message, sent
from asyncrl.messages.rollout import Offer
from asyncrl.messages.session import Bye, Ready
from asyncrl.messages.wire import MESSAGES, AnyMessage
from asyncrl.messages.words import Role
from asyncrl.wire.memory import MemoryLink
from tests.broker import driver
from tests.broker.house import House, impatient, run

__all__ = ["impatient"]


def test_every_message_to_the_broker_has_a_handler(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        assert set(house.broker._handlers) == {kind for kind in MESSAGES if "broker" in kind.senders}
        assert Bye not in house.scheduler.rules, "a departure is no rule: the shell tells the scheduler of it"

    run(tmp_path, script)


def test_two_handlers_of_one_message_are_an_error() -> None:
    told = Handlers[[str]]()

    class One:
        @told
        def offer(self, message: Offer, peer: str) -> None: ...

    class Other:
        @told
        def offer_or_ready(self, message: Offer | Ready, peer: str) -> None: ...

    assert set(told.table(One())) == {Offer}
    assert set(told.table(Other())) == {Offer, Ready}
    with pytest.raises(BrokenInvariant, match="Offer has two handlers"):
        told.table(One(), Other())


# ── a new message ─────────────────────────────────────────────────────────────────────────────
# A rollout tells how warm its device is. In the package these are a class below asyncrl/messages/, a method of the
# object in asyncrl/broker/ that owns the subject, and the line that sends it.


@sent(by="rollout", to="broker")
class Warm(Message, frozen=True):  # 1. its row
    kelvin: int

    def out_of_bounds(self) -> str:
        return bounds.count("kelvin", self.kelvin)


class WarmScheduler(Scheduler):
    @rule
    def _warm(self, message: Warm, node: Node, now_s: float) -> None:  # 2. its handler
        self.out.event("node.heard", node=node.name, kelvin=message.kelvin)


async def tell(link: MemoryLink, kelvin: int) -> None:  # 3. its sender
    await link.send(Warm(kelvin))


@pytest.fixture
def warm_house(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "Scheduler", WarmScheduler)


@pytest.mark.usefixtures("warm_house")
def test_a_new_message_is_allowed_checked_and_handled_by_its_row_and_its_method(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        nodes: dict[Role, MemoryLink] = {"rollout": await house.welcomed("rollout", "a")}
        nodes["reward"] = await house.welcomed("reward", "r")
        await tell(nodes["rollout"], -1)
        await tell(nodes["reward"], 300)
        await tell(nodes["rollout"], 301)
        await house.happened("node.heard")

    house = run(tmp_path, script)

    assert [(event["node"], event["kelvin"]) for event in house.events("node.heard")] == [("a", 301)]
    assert house.summary.failed == {
        "message: Warm of a: kelvin is -1": 1,
        "message: Warm of r: a reward may not send Warm": 1,
    }


def test_a_new_message_crosses_the_wire_as_its_name_and_its_fields() -> None:
    frame = Envelope[Message](1, 0, Warm(301))
    assert Codec(AnyMessage | Warm).decode(Encoder().encode(frame)).body == Warm(301)
