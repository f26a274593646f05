import asyncio
from collections.abc import Awaitable, Callable

import pytest
import zmq
from rich.pretty import pretty_repr

from asyncrl.errors import ConfigError, WrongHub
from asyncrl.messages.rollout import Offer
from asyncrl.messages.wire import CODEC
from asyncrl.wire.curve import (
    HANDSHAKE_MS,
    HubKeys,
    LinkKeys,
    hub_keys_of,
    link_keys_of,
    local_pair,
    new_pair,
    public_of,
)
from asyncrl.wire.zmq_hub import ZmqHub
from asyncrl.wire.zmq_link import ZmqLink

SECRET, OTHER = bytes(32), bytes([1] * 32)
TCP = "tcp://127.0.0.1:0"


def with_hub(scene: Callable[[ZmqHub], Awaitable[None]]) -> None:
    async def main() -> None:
        hub = ZmqHub(TCP, CODEC, keys=hub_keys_of(SECRET))
        try:
            async with asyncio.timeout(30):
                await scene(hub)
        finally:
            await hub.aclose()

    asyncio.run(main())


def test_two_ends_that_share_a_secret_talk_by_tcp() -> None:
    async def scene(hub: ZmqHub) -> None:
        link = ZmqLink(hub.address, "a.1", CODEC, keys=link_keys_of(SECRET))
        await link.send(Offer(1))
        assert await hub.receive() == ("a.1", Offer(1))
        await link.aclose()

    with_hub(scene)


def test_a_link_with_another_secret_fails_within_seconds_and_is_not_read() -> None:
    async def scene(hub: ZmqHub) -> None:
        link, honest = (
            ZmqLink(hub.address, name, CODEC, keys=link_keys_of(s)) for name, s in (("a.1", OTHER), ("b.1", SECRET))
        )
        await link.send(Offer(1))
        with pytest.raises(WrongHub, match="not this run's broker"):
            async with asyncio.timeout(HANDSHAKE_MS / 1000):
                await link.receive()
        await honest.send(Offer(2))
        assert await hub.receive() == ("b.1", Offer(2))
        await link.aclose()
        await honest.aclose()

    with_hub(scene)


def test_a_peer_without_keys_is_not_read() -> None:
    async def scene(hub: ZmqHub) -> None:
        stranger: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.connect(hub.address)
        stranger.send(b"x" * 100)
        honest = ZmqLink(hub.address, "b.1", CODEC, keys=link_keys_of(SECRET))
        await honest.send(Offer(2))
        assert await hub.receive() == ("b.1", Offer(2))
        await honest.aclose()
        stranger.close()

    with_hub(scene)


def test_a_link_says_nothing_to_a_hub_without_the_secret() -> None:
    async def scene() -> None:
        impostor: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        port = impostor.bind_to_random_port("tcp://127.0.0.1")
        link = ZmqLink(f"tcp://127.0.0.1:{port}", "a.1", CODEC, keys=link_keys_of(SECRET))
        await link.send(Offer(1))
        with pytest.raises(WrongHub):
            await link.receive()
        assert not impostor.poll(0)
        await link.aclose()
        impostor.close(linger=0)

    asyncio.run(scene())


def test_a_tcp_address_needs_keys() -> None:
    async def scene() -> None:
        with pytest.raises(ConfigError, match="needs the secret of the run, or a key: give --secret FILE or"):
            ZmqHub(TCP, CODEC)
        with pytest.raises(ConfigError, match="needs the secret of the run, or a key"):
            ZmqLink("tcp://127.0.0.1:9", "a.1", CODEC)

    asyncio.run(scene())


@pytest.mark.parametrize("secret", [b"", b"short"])
def test_keys_are_derived_from_whole_secrets(secret: bytes) -> None:
    with pytest.raises(ConfigError, match=f"the secret of a run has 32 bytes, got {len(secret)}"):
        hub_keys_of(secret)


def test_keys_of_one_secret_belong_together_and_to_no_other() -> None:
    assert link_keys_of(SECRET).hub == hub_keys_of(SECRET).public != hub_keys_of(OTHER).public
    assert local_pair(SECRET)[0] not in (hub_keys_of(SECRET).public, local_pair(OTHER)[0])
    for public, private in (new_pair(), local_pair(SECRET)):
        assert public_of(private) == public


def test_private_keys_are_not_shown() -> None:
    public, private = new_pair()
    keys = (HubKeys(public, private), LinkKeys(public, private, public))
    shown = repr(keys) + pretty_repr(keys)
    assert public.hex()[:16] in shown
    assert private.hex()[:8] not in shown
    assert repr(private)[2:10] not in shown
