import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import zmq
from structlog.testing import capture_logs
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from asyncrl.errors import LinkReset, UnknownKey
from asyncrl.messages.codec import Envelope, encode
from asyncrl.messages.rollout import Offer
from asyncrl.messages.wire import CODEC
from asyncrl.wire import zmq_hub
from asyncrl.wire.curve import HubKeys, LinkKeys, Owner, new_pair
from asyncrl.wire.zmq_hub import ZmqHub
from asyncrl.wire.zmq_link import ZmqLink

FIRST = encode(Envelope(1, 0, Offer(1), 0))
TCP = "tcp://127.0.0.1:0"
DEADLINE_S = 30.0
ROLLOUT, REWARD = (Owner(name, frozenset((name,))) for name in ("rollout", "reward"))
Allowed = dict[bytes, Owner]


@asynccontextmanager
async def link_to(hub: ZmqHub, server: bytes, pair: tuple[bytes, bytes], identity: str) -> AsyncIterator[ZmqLink]:
    link = ZmqLink(hub.address, identity, CODEC, keys=LinkKeys(*pair, server))
    try:
        yield link
    finally:
        await link.aclose()


def with_hub(scene: Callable[[ZmqHub, bytes, Allowed], Awaitable[None]]) -> None:
    async def main() -> None:
        public, private = new_pair()
        allowed: Allowed = {}
        hub = ZmqHub(TCP, CODEC, keys=HubKeys(public, private, allowed.get))
        try:
            async with asyncio.timeout(DEADLINE_S):
                await scene(hub, public, allowed)
        finally:
            await hub.aclose()

    asyncio.run(main())


def dealer(server: bytes, pair: tuple[bytes, bytes]) -> "zmq.Socket[bytes]":
    """A socket of somebody who does not use asyncrl."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.CURVE_SERVERKEY, z85.encode(server))
    socket.setsockopt(zmq.CURVE_PUBLICKEY, z85.encode(pair[0]))
    socket.setsockopt(zmq.CURVE_SECRETKEY, z85.encode(pair[1]))
    return socket


async def event(events: "zmq.Socket[bytes]") -> int:
    while not events.poll(0):
        await asyncio.sleep(0.01)
    return parse_monitor_message(events.recv_multipart())["event"]


def end(socket: "zmq.Socket[bytes]", events: "zmq.Socket[bytes]") -> None:
    """Close a socket and its monitor, in this order: an event that nobody takes would stop ZeroMQ's thread for ever."""
    socket.disable_monitor()
    events.close()
    socket.close()


def test_a_hub_knows_the_owner_of_each_peer() -> None:
    async def scene(hub: ZmqHub, server: bytes, allowed: Allowed) -> None:
        first, second = new_pair(), new_pair()
        allowed |= {first[0]: ROLLOUT, second[0]: REWARD}
        async with link_to(hub, server, first, "a.1") as link, link_to(hub, server, second, "b.1") as other:
            await link.send(Offer(1))
            assert await hub.receive() == ("a.1", Offer(1))
            await other.send(Offer(2))
            assert await hub.receive() == ("b.1", Offer(2))
            assert (hub.owner("a.1"), hub.owner("b.1"), hub.owner("c.1")) == (ROLLOUT, REWARD, None)
            local = hub.local.connect("c.1")
            await local.send(Offer(3))
            assert await hub.receive() == ("c.1", Offer(3))
            assert hub.owner("c.1") is None

    with_hub(scene)


def test_a_key_without_an_owner_is_refused_and_told_so_at_once() -> None:
    async def scene(hub: ZmqHub, server: bytes, allowed: Allowed) -> None:
        async with link_to(hub, server, new_pair(), "a.1") as link:
            await link.send(Offer(1))
            with pytest.raises(UnknownKey, match="does not accept this key"):
                await link.receive()
            assert hub.refused_key
            assert hub.refused_key.num_refused == 1
        honest = new_pair()
        allowed[honest[0]] = ROLLOUT
        async with link_to(hub, server, honest, "b.1") as link:
            await link.send(Offer(2))
            assert await hub.receive() == ("b.1", Offer(2))

    with_hub(scene)


def test_a_revoked_key_is_cut_off_and_cannot_come_back() -> None:
    async def scene(hub: ZmqHub, server: bytes, allowed: Allowed) -> None:
        revoked, kept = new_pair(), new_pair()
        allowed |= {revoked[0]: ROLLOUT, kept[0]: REWARD}
        async with link_to(hub, server, revoked, "a.1") as link, link_to(hub, server, kept, "b.1") as other:
            await link.send(Offer(1))
            await other.send(Offer(2))
            assert sorted([await hub.receive(), await hub.receive()]) == [("a.1", Offer(1)), ("b.1", Offer(2))]
            del allowed[revoked[0]]
            assert hub.cut([revoked[0]]) == ["a.1"]
            with pytest.raises(UnknownKey):
                await link.receive()
            hub.send("a.1", Offer(3))
            await other.send(Offer(4))
            assert await hub.receive() == ("b.1", Offer(4))

    with_hub(scene)


def test_a_key_that_is_revoked_before_it_says_a_word_is_cut_off() -> None:
    async def scene(hub: ZmqHub, server: bytes, allowed: Allowed) -> None:
        revoked = new_pair()
        allowed[revoked[0]] = ROLLOUT
        socket = dealer(server, revoked)
        events = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        socket.connect(hub.address)
        assert await event(events) == zmq.EVENT_HANDSHAKE_SUCCEEDED
        del allowed[revoked[0]]
        socket.send(FIRST)
        assert await event(events) == zmq.EVENT_HANDSHAKE_FAILED_AUTH
        end(socket, events)

    with_hub(scene)


def test_nobody_takes_over_the_session_of_another_key() -> None:
    """The thief knows the peer's name, as members of a transfer do."""

    async def scene(hub: ZmqHub, server: bytes, allowed: Allowed) -> None:
        owner, thief = new_pair(), new_pair()
        allowed |= {owner[0]: ROLLOUT, thief[0]: REWARD}
        async with link_to(hub, server, owner, "a.1") as link, link_to(hub, server, thief, "a.1") as other:
            await link.send(Offer(1))
            assert await hub.receive() == ("a.1", Offer(1))
            await other.send(Offer(2))
            hub.send("a.1", Offer(3))
            assert await link.receive() == Offer(3)
            await link.send(Offer(4))
            assert await hub.receive() == ("a.1", Offer(4))
            assert hub.owner("a.1") == ROLLOUT

    with_hub(scene)


def test_a_peer_without_a_key_is_not_read() -> None:
    async def scene(hub: ZmqHub, server: bytes, allowed: Allowed) -> None:
        strangers: list[zmq.Socket[bytes]] = [zmq.Context.instance().socket(zmq.DEALER) for _ in range(2)]
        strangers[1].setsockopt(zmq.PLAIN_USERNAME, b"name")
        for stranger in strangers:
            stranger.setsockopt(zmq.LINGER, 0)
            stranger.connect(hub.address)
            with contextlib.suppress(zmq.Again):  # The hub has cut it off already.
                stranger.send(FIRST, zmq.NOBLOCK)
        honest = new_pair()
        allowed[honest[0]] = ROLLOUT
        async with link_to(hub, server, honest, "b.1") as link:
            await link.send(Offer(2))
            assert await hub.receive() == ("b.1", Offer(2))
        for stranger in strangers:
            stranger.close()

    with_hub(scene)


def test_many_refusals_fill_no_log() -> None:
    async def scene(hub: ZmqHub, server: bytes, _: Allowed) -> None:
        strangers = [dealer(server, new_pair()) for _ in range(20)]
        for stranger in strangers:
            stranger.connect(hub.address)
        while not hub.refused_key or hub.refused_key.num_refused < 20:
            await asyncio.sleep(0.01)
        for stranger in strangers:
            stranger.close()

    with capture_logs() as logs:
        with_hub(scene)
    assert [log["num_refused"] for log in logs if log["event"] == "key.refused"] == [1, 2, 4, 8, 16]


def test_a_peer_that_was_forgotten_is_reset() -> None:
    async def scene(hub: ZmqHub, server: bytes, allowed: Allowed) -> None:
        pair = new_pair()
        allowed[pair[0]] = ROLLOUT
        async with link_to(hub, server, pair, "a.1") as link:
            await link.send(Offer(1))
            await hub.receive()
            hub.forget("a.1")
            with pytest.raises(LinkReset):
                await link.receive()

    with_hub(scene)


def test_a_key_that_sends_too_many_frames_is_cut_and_named_and_others_are_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zmq_hub, "BURST_FRAMES", 100)
    monkeypatch.setattr(zmq_hub, "FRAMES_PER_S", 1)

    async def scene(hub: ZmqHub, server: bytes, allowed: Allowed) -> None:
        flooding, honest = new_pair(), new_pair()
        allowed |= {flooding[0]: REWARD, honest[0]: ROLLOUT}
        socket = dealer(server, flooding)
        socket.setsockopt(zmq.ROUTING_ID, b"flood.1")
        events = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        socket.connect(hub.address)
        for number in range(300):
            socket.send(encode(Envelope(number + 1, 0, Offer(number), 0)))
        assert await event(events) == zmq.EVENT_DISCONNECTED
        assert [await hub.receive() for _ in range(100)] == [("flood.1", Offer(number)) for number in range(100)]
        async with link_to(hub, server, honest, "a.1") as link:
            await link.send(Offer(1))
            assert await hub.receive() == ("a.1", Offer(1))
        end(socket, events)
        expected = {"peer": "flood.1", "key": flooding[0].hex()[:16], "name": "reward", "num_refused": 1}
        cut = next(log for log in logs if log["event"] == "peer.flood")
        assert {key: cut[key] for key in expected} == expected

    with capture_logs() as logs:
        with_hub(scene)


@pytest.mark.slow("waits for a socket to connect again")
def test_a_key_that_was_cut_loses_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_hub, "BURST_FRAMES", 100)
    monkeypatch.setattr(zmq_hub, "FRAMES_PER_S", 5000)

    async def scene(hub: ZmqHub, server: bytes, allowed: Allowed) -> None:
        pair = new_pair()
        allowed[pair[0]] = ROLLOUT
        async with link_to(hub, server, pair, "a.1") as link:
            for number in range(1000):
                await link.send(Offer(number))
            for number in range(1000):
                assert await hub.receive() == ("a.1", Offer(number))

    with capture_logs() as logs:
        with_hub(scene)
    assert any(log["event"] == "peer.flood" for log in logs)


def test_of_too_many_sessions_of_one_key_its_own_oldest_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_hub, "MAX_KEY_SESSIONS", 3)

    async def scene(hub: ZmqHub, server: bytes, allowed: Allowed) -> None:
        crowd, honest = new_pair(), new_pair()
        allowed |= {crowd[0]: REWARD, honest[0]: ROLLOUT}
        async with contextlib.AsyncExitStack() as links:
            silent = await links.enter_async_context(link_to(hub, server, honest, "honest.1"))
            await silent.send(Offer(0))
            assert await hub.receive() == ("honest.1", Offer(0))
            many = []
            for number in range(4):
                many.append(await links.enter_async_context(link_to(hub, server, crowd, f"crowd.{number}")))
                await many[-1].send(Offer(number))
                assert await hub.receive() == (f"crowd.{number}", Offer(number))
            with pytest.raises(LinkReset):
                await many[0].receive()
            assert (hub.owner("crowd.0"), hub.owner("crowd.3"), hub.owner("honest.1")) == (None, REWARD, ROLLOUT)

    with_hub(scene)
