import asyncio
from collections.abc import AsyncIterator

import pytest

from asyncrl.actor.message import Message
from asyncrl.errors import LinkClosed, LinkRefused
from asyncrl.messages.session import AskTurn, Asleep, Bye, Reject, Sleep, Stop, Wake
from asyncrl.messages.spool import Spools, SpoolSet
from asyncrl.node.runner import ToldToStop
from asyncrl.node.turn import wait_for_turn


class Broker:
    """A link with these messages in it."""

    def __init__(self, *messages: Message) -> None:
        self.messages = list(messages)
        self.sent: list[Message] = []
        self.is_closed = False

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def receive(self) -> Message:
        await asyncio.sleep(0)
        if not self.messages:
            raise LinkClosed("no more")
        return self.messages.pop(0)

    def __aiter__(self) -> AsyncIterator[Message]:
        raise NotImplementedError

    async def aclose(self) -> None:
        self.is_closed = True


SPOOLS = Spools(SpoolSet([], "", []))


def test_a_node_says_that_it_has_nothing_on_the_devices_and_waits() -> None:
    async def main() -> None:
        broker = Broker(Wake())
        await wait_for_turn(broker)
        assert [type(message) for message in broker.sent] == [Asleep, AskTurn]

    asyncio.run(main())


def test_messages_that_come_meanwhile_are_received_again_in_order() -> None:
    async def main() -> None:
        link = await wait_for_turn(Broker(SPOOLS, Sleep(), SPOOLS, Wake(), Stop("done")))
        assert [message async for message in link] == [SPOOLS, SPOOLS, Stop("done")]

    asyncio.run(main())


def test_the_link_is_that_of_the_node() -> None:
    async def main() -> None:
        broker = Broker(Wake())
        link = await wait_for_turn(broker)
        await link.send(Bye("done"))
        await link.aclose()
        assert broker.sent[-1] == Bye("done")
        assert broker.is_closed

    asyncio.run(main())


def test_a_run_that_ends_meanwhile_is_left() -> None:
    async def main() -> None:
        broker = Broker(Stop("the run is complete"))
        with pytest.raises(ToldToStop):
            await wait_for_turn(broker)
        assert broker.sent[-1] == Bye("done")
        assert broker.is_closed

    asyncio.run(main())


def test_a_node_that_is_refused_says_why() -> None:
    async def main() -> None:
        with pytest.raises(LinkRefused, match="another model"):
            await wait_for_turn(Broker(Reject("another model")))

    asyncio.run(main())
