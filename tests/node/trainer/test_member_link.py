"""A machine's link hears of the end of its group at any time, and says Bye once the cause is known."""

import asyncio

import pytest

from asyncrl.actor.memory import MemoryHub
from asyncrl.errors import LinkRefused, LinkReset
from asyncrl.messages.session import Beat, Bye, Reject, Stop
from asyncrl.messages.trainer import Disbanded, Take
from asyncrl.node.trainer.member_link import MemberLink

PEER = "trainer-a.0"


def test_the_end_of_the_group_is_known_though_nobody_receives() -> None:
    async def scene() -> None:
        hub = MemoryHub()
        link = MemberLink(hub.connect(PEER), 60.0)
        hub.send(PEER, Stop("first"))
        hub.send(PEER, Disbanded("b on host-b (rank 1) was lost"))
        assert str(await link.lost) == "b on host-b (rank 1) was lost"
        assert await link.receive() == Stop("first")
        await link.leave("done")

    asyncio.run(scene())


def test_a_machine_whose_place_is_taken_is_refused() -> None:
    async def scene() -> None:
        hub = MemoryHub()
        link = MemberLink(hub.connect(PEER), 60.0)
        hub.send(PEER, Reject("another process has joined as trainer-a"))
        with pytest.raises(LinkRefused, match="another process has joined as trainer-a"):
            await link.receive()
        await link.leave("LinkRefused")

    asyncio.run(scene())


def test_the_bye_of_the_role_is_held_back_until_the_machine_leaves() -> None:
    async def scene() -> None:
        hub = MemoryHub()
        link = MemberLink(hub.connect(PEER), 60.0)
        for message in (Take(1), Bye("RankDied: connection closed")):
            await link.send(message)
        await link.aclose()
        await link.leave("MachineLost: b was lost")
        assert [await hub.receive() for _ in range(2)] == [(PEER, Take(1)), (PEER, Bye("MachineLost: b was lost"))]

    asyncio.run(scene())


def test_the_last_beat_is_repeated_while_the_role_sends_none() -> None:
    async def scene() -> None:
        hub = MemoryHub()
        link = MemberLink(hub.connect(PEER), 0.001)
        assert await hub.receive() == (PEER, Beat())
        await link.send(Beat(tokens=7))
        while await hub.receive() != (PEER, Beat(tokens=7)):
            pass
        assert await hub.receive() == (PEER, Beat(tokens=7))
        await link.leave("done")

    asyncio.run(scene())


def test_a_broker_that_restarts_resets_it() -> None:
    async def scene() -> None:
        hub = MemoryHub()
        link = MemberLink(hub.connect(PEER), 60.0)
        hub.forget(PEER)
        with pytest.raises(LinkReset):
            await link.receive()
        await link.leave("LinkReset")

    asyncio.run(scene())
