"""In-memory links pass messages by reference. Tests shared with ZeroMQ are in test_link.py."""

import asyncio

import pytest

from asyncrl.errors import LinkClosed, LinkReset
from asyncrl.messages.codec import Message
from asyncrl.messages.session import Bye
from asyncrl.wire.link import Inbox
from asyncrl.wire.memory import MemoryHub


def test_a_message_arrives_as_the_same_object() -> None:
    async def main() -> tuple[str, Message]:
        hub = MemoryHub()
        await hub.connect("a").send(BYE)
        return await hub.receive()

    peer, message = asyncio.run(main())
    assert peer == "a"
    assert message is BYE


def test_two_hubs_may_share_one_inbox() -> None:
    async def main() -> list[str]:
        inbox: Inbox[tuple[str, Message]] = Inbox(1 << 20)
        hubs = MemoryHub(inbox), MemoryHub(inbox)
        for name, hub in zip("ab", hubs, strict=True):
            await hub.connect(name).send(BYE)
        return [(await hubs[0].receive())[0] for _ in hubs]

    assert asyncio.run(main()) == ["a", "b"]


def test_a_link_of_a_closed_hub_cannot_send() -> None:
    async def main() -> None:
        hub = MemoryHub()
        link = hub.connect("a")
        await hub.aclose()
        await link.send(BYE)

    with pytest.raises(LinkClosed, match="the hub is closed"):
        asyncio.run(main())


def test_a_forgotten_peer_gets_a_reset_at_its_next_send() -> None:
    async def main() -> None:
        hub = MemoryHub()
        link = hub.connect("a")
        hub.forget("a")
        await link.send(BYE)

    with pytest.raises(LinkReset, match="the hub forgot this peer"):
        asyncio.run(main())


BYE = Bye("done")
