"""Faults that only a hub's socket has: hostile frames, crowds, slow readers, busy ports."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import MutableMapping
from typing import Any

import msgspec
import pytest
import zmq
from structlog.testing import capture_logs
from zmq.utils.monitor import recv_monitor_message

from asyncrl.errors import LinkError, LinkReset
from asyncrl.messages.codec import Part
from asyncrl.messages.rollout import Offer
from asyncrl.messages.session import Bye, Stop, StoreSet, StoreValue
from asyncrl.messages.wire import CODEC
from asyncrl.wire import sockets, zmq_hub
from asyncrl.wire.curve import hub_keys_of
from asyncrl.wire.session import Limits
from asyncrl.wire.zmq_hub import ZmqHub
from tests.wire.ends import ANY_SOCKET, DEADLINE_S, HOSTILE, SECRET, frame, hear_out, hub_at, link_to


@pytest.mark.parametrize("frames", HOSTILE, ids=lambda frames: repr(frames[0][:12]))
def test_a_hostile_frame_harms_neither_the_hub_nor_its_peers(
    stranger: "zmq.Socket[bytes]", frames: list[bytes]
) -> None:
    async def scene() -> None:
        async with hub_at(ANY_SOCKET) as hub, link_to(hub.address, "honest.1") as honest:
            stranger.connect(hub.address)
            stranger.send_multipart(frames)
            stranger.send(frame(1, 0, Bye("now in earnest")))
            # The valid frame of the stranger arrives after the hostile one, so the hub has read both.
            heard = await hub.receive()
            while heard == ("stranger.1", Offer(1)):
                heard = await hub.receive()
            assert heard == ("stranger.1", Bye("now in earnest"))
            await honest.send(Offer(1))
            assert await hub.receive() == ("honest.1", Offer(1))
            hub.send("honest.1", Stop("heard"))
            assert await honest.receive() == Stop("heard")

    asyncio.run(scene())


def test_an_oversize_frame_closes_its_own_connection_and_no_other(stranger: "zmq.Socket[bytes]") -> None:
    async def scene() -> None:
        async with hub_at(ANY_SOCKET, limits=Limits(frame=1000)) as hub, link_to(hub.address, "honest.1") as honest:
            monitor = stranger.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            stranger.connect(hub.address)
            stranger.send(frame(1, 0, Bye("x" * 2000)))
            assert (await asyncio.to_thread(recv_monitor_message, monitor))["event"] == zmq.EVENT_DISCONNECTED
            stranger.disable_monitor()
            monitor.close()
            await honest.send(Offer(1))
            assert await hub.receive() == ("honest.1", Offer(1))

    asyncio.run(scene())


def test_unfinished_messages_of_many_peers_take_bounded_memory(
    stranger: "zmq.Socket[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peers that send on are served; the silent ones are dropped."""
    monkeypatch.setattr(zmq_hub, "MAX_UNFINISHED_BYTES", 10_000)
    part = Part(5000, memoryview(b"x" * 900))

    async def scene() -> None:
        limits = Limits(frame=1000, message=6000)
        async with hub_at(ANY_SOCKET, limits=limits) as hub, link_to(hub.address, "honest.1", limits=limits) as honest:
            crowd = []
            for number in range(30):
                one = stranger.context.socket(zmq.DEALER)
                one.setsockopt(zmq.ROUTING_ID, f"stranger.{number}".encode())
                one.connect(hub.address)
                one.send(frame(1, 0, Offer(number)))
                await hub.receive()
                one.send(frame(2, 0, part))
                one.send(frame(3, 0, part))
                crowd.append(one)
            for number in range(5):
                await honest.send(StoreSet("group", str(number), b"y" * 5000))
                assert await hub.receive() == ("honest.1", StoreSet("group", str(number), b"y" * 5000))
            for one in crowd[:20]:  # All but the last few were told that their session is over.
                assert msgspec.msgpack.decode(await asyncio.to_thread(one.recv))[2] == ["Reset"]
            for one in crowd:
                one.close()

    asyncio.run(scene())


def test_a_peer_that_takes_nothing_is_dropped_when_it_is_owed_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_hub, "MAX_OWED_BYTES", 100_000)

    async def scene() -> None:
        async with hub_at() as hub, link_to(hub.address, "a.1") as link:
            await link.send(Offer(1))
            await hub.receive()
            for number in range(200):
                hub.send("a.1", StoreValue("group", str(number), b"x" * 1000))
            heard = [await link.receive() for _ in range(50)]
            assert heard == [StoreValue("group", str(number), b"x" * 1000) for number in range(50)]
            with pytest.raises(LinkReset):
                await hear_out(link)

    asyncio.run(scene())


def test_of_too_many_peers_the_one_that_was_silent_for_longest_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_hub, "MAX_PEERS", 3)

    async def scene() -> None:
        async with hub_at(ANY_SOCKET) as hub, link_to(hub.address, "silent.1") as silent:
            await silent.send(Offer(1))
            await hub.receive()
            await asyncio.sleep(2 * sockets.TICK_S)
            for number in range(3):
                async with link_to(hub.address, f"other.{number}") as other:
                    await other.send(Offer(number))
                    assert await hub.receive() == (f"other.{number}", Offer(number))
            with pytest.raises(LinkReset):
                await hear_out(silent)

    monkeypatch.setattr(sockets, "TICK_S", 0.01)
    asyncio.run(scene())


def test_a_peer_that_is_long_gone_is_forgotten_with_what_it_was_owed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_hub, "GONE_TICKS", 20)
    monkeypatch.setattr(sockets, "TICK_S", 0.01)

    async def scene(logs: list[MutableMapping[str, Any]]) -> None:
        async with hub_at(ANY_SOCKET) as hub:
            async with link_to(hub.address, "gone.1") as link:
                await link.send(Offer(1))
                await hub.receive()
            hub.send("gone.1", Stop("never read"))
            while not logs:
                await asyncio.sleep(0.01)

    with capture_logs() as logs:
        asyncio.run(scene(logs))
    assert [(entry["event"], entry["peer"]) for entry in logs] == [("peer.reset", "gone.1")]


def test_a_peer_that_reads_nothing_blocks_no_other_peer(stranger: "zmq.Socket[bytes]") -> None:
    async def scene() -> None:
        async with hub_at(ANY_SOCKET) as hub, link_to(hub.address, "honest.1") as honest:
            stranger.connect(hub.address)
            stranger.send(frame(1, 0, Offer(1)))
            await hub.receive()
            await honest.send(Offer(1))
            await hub.receive()
            for _ in range(4000):  # Far more than ZeroMQ's queue and the kernel's buffers hold.
                hub.send("stranger.1", StoreValue("group", "key", b"x" * 10_000))
            hub.send("honest.1", Stop("not behind those"))
            assert await honest.receive() == Stop("not behind those")

    asyncio.run(scene())


def test_other_tasks_run_while_a_hub_is_flooded() -> None:
    num = 20_000

    all_heard = threading.Event()

    def flood(address: str) -> None:
        context = zmq.Context()
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.ROUTING_ID, b"flood.1")
        socket.connect(address)
        for seq in range(1, num + 1):
            socket.send(frame(seq, 0, Offer(seq)))
        all_heard.wait(DEADLINE_S)
        context.destroy(linger=0)

    async def scene() -> None:
        iterations = 0

        async def ticker() -> None:
            nonlocal iterations
            while True:
                iterations += 1
                await asyncio.sleep(0)

        async with hub_at(ANY_SOCKET) as hub:
            ticking = asyncio.create_task(ticker())
            thread = threading.Thread(target=flood, args=(hub.address,))
            thread.start()
            await hub.receive()
            iterations = 0
            for seq in range(2, num + 1):
                assert await hub.receive() == ("flood.1", Offer(seq))
            ticking.cancel()
            all_heard.set()
            thread.join()
        # The messages take far more than 20 ms; one iteration has 1 ms for the socket and 1 ms for the inbox.
        assert iterations >= 10

    asyncio.run(scene())


def test_a_busy_port_is_reported_in_one_sentence() -> None:
    async def scene() -> None:
        async with hub_at() as hub:
            with pytest.raises(LinkError) as raised:
                ZmqHub(hub.address, CODEC, keys=hub_keys_of(SECRET))
            assert str(raised.value) == (
                f"cannot bind {hub.address}: the port is in use; stop what holds it, or bind port 0"
            )

    asyncio.run(scene())


def test_a_local_actor_is_a_peer_like_a_remote_one() -> None:
    async def scene() -> None:
        async with hub_at() as hub, link_to(hub.address, "far.1") as far:
            near = hub.local.connect("near.1")
            for link, peer in ((far, "far.1"), (near, "near.1")):
                await link.send(Offer(1))
                assert await hub.receive() == (peer, Offer(1))
                hub.send(peer, Stop(peer))
                assert await link.receive() == Stop(peer)
            hub.forget("near.1")
            with pytest.raises(LinkReset):
                await near.receive()

    asyncio.run(scene())


CROWDED = """
import asyncio, sys, time
import zmq
from asyncrl.wire import zmq_hub
from asyncrl.messages.codec import Envelope, encode
from asyncrl.messages.session import Beat
from asyncrl.messages.wire import CODEC

zmq_hub.MAX_INBOX_BYTES = 1


async def main():
    hub = zmq_hub.ZmqHub("ipc://*", CODEC)
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.SNDHWM, 1)
    dealer.connect(hub.address)
    for seq in range(1, 100_000):
        await asyncio.sleep(0)
        if not dealer.poll(500, zmq.POLLOUT):
            break
        dealer.send(encode(Envelope(seq, 0, Beat())))
    context.destroy(linger=0)
    await asyncio.sleep(float(sys.argv[1]))
    print(await hub.receive())


asyncio.run(main())
"""


@pytest.mark.slow("fills the buffers of the kernel")
def test_a_hub_that_does_not_read_survives_the_end_of_a_peer_that_sends_more() -> None:
    """ZeroMQ aborts the process if its heartbeat is due on a broken connection whose frames nobody has read."""
    ended = subprocess.run(
        [sys.executable, "-c", CROWDED, "6"], check=False, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    assert "Beat" in ended.stdout
