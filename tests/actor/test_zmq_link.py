"""Faults that only sockets have: hostile frames, lost connections, full queues, busy ports."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from asyncrl.actor import fd_socket, session, zmq_link
from asyncrl.actor.codec import Ack, Envelope, Reset, encode
from asyncrl.actor.zmq_link import ZmqHub, ZmqLink
from asyncrl.errors import BrokenInvariant, LinkClosed, LinkError, LinkReset
from asyncrl.messages import CODEC, Bye, Offer, Stop, StoreSet, StoreValue

ANY_PORT = "tcp://127.0.0.1:0"
DEADLINE_S = 60.0


@asynccontextmanager
async def hub_at(address: str = ANY_PORT, *, max_frame_bytes: int = 1 << 20) -> AsyncIterator[ZmqHub]:
    hub = ZmqHub(address, CODEC, max_frame_bytes=max_frame_bytes)
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield hub
    finally:
        await hub.aclose()


@asynccontextmanager
async def link_to(address: str, identity: str, *, max_frame_bytes: int = 1 << 20) -> AsyncIterator[ZmqLink]:
    link = ZmqLink(address, identity, CODEC, max_frame_bytes=max_frame_bytes)
    try:
        yield link
    finally:
        await link.aclose()


@pytest.fixture
def stranger() -> Iterator["zmq.Socket[bytes]"]:
    """A ZeroMQ peer that does not speak asyncrl's protocol."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.ROUTING_ID, b"stranger.1")
    socket.setsockopt(zmq.RCVHWM, 1)
    yield socket
    context.destroy(linger=0)


def frame(seq: int, ack: int, body: object) -> bytes:
    return encode(Envelope(seq, ack, body))  # type: ignore[arg-type]


# ── hostile peers ───────────────────────────────────────────────────────────────────────────

HOSTILE = [
    [b""],
    [b"not one of ours"],
    [b"two", b"frames"],
    [b"\x91" * 100_000],
    [b"\xdd\xff\xff\xff\xff"],
    [b"\x93\x01\x00\xc6\xff\xff\xff\xff"],
    [msgspec.msgpack.encode([1, 0, ["Unheard"]])],
    [frame(0, 0, Ack())],
    [frame(0, 0, Reset())],
    [frame(7, 0, Offer(1))],
    [frame(1, 9, Offer(1))],
    [frame(-1, -1, Offer(1))],
]


@pytest.mark.parametrize("frames", HOSTILE, ids=lambda frames: repr(frames[0][:12]))
def test_a_hostile_frame_harms_neither_the_hub_nor_its_peers(
    stranger: "zmq.Socket[bytes]", frames: list[bytes]
) -> None:
    async def scene() -> None:
        async with hub_at() as hub, link_to(hub.address, "honest.1") as honest:
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


def test_a_hostile_hub_cannot_break_a_link() -> None:
    async def scene() -> None:
        context = zmq.Context()
        router = context.socket(zmq.ROUTER)
        router.setsockopt(zmq.LINGER, 0)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        async with asyncio.timeout(DEADLINE_S), link_to(f"tcp://127.0.0.1:{port}", "a.1") as link:
            await link.send(Offer(1))
            peer, _ = await asyncio.to_thread(router.recv_multipart)
            for frames in HOSTILE[:7]:
                router.send_multipart([peer, *frames])
            router.send_multipart([peer, frame(1, 1, Stop("sense"))])
            assert await link.receive() == Stop("sense")
        context.destroy(linger=0)

    asyncio.run(scene())


def test_an_oversize_frame_closes_its_own_connection_and_no_other(stranger: "zmq.Socket[bytes]") -> None:
    async def scene() -> None:
        async with hub_at(max_frame_bytes=1000) as hub, link_to(hub.address, "honest.1") as honest:
            monitor = stranger.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            stranger.connect(hub.address)
            stranger.send(frame(1, 0, Bye("x" * 2000)))
            assert (await asyncio.to_thread(recv_monitor_message, monitor))["event"] == zmq.EVENT_DISCONNECTED
            stranger.disable_monitor()
            monitor.close()
            await honest.send(Offer(1))
            assert await hub.receive() == ("honest.1", Offer(1))

    asyncio.run(scene())


def test_an_oversize_message_is_refused_before_it_is_sent() -> None:
    async def scene() -> None:
        async with hub_at(max_frame_bytes=1000) as hub, link_to(hub.address, "a.1", max_frame_bytes=1000) as link:
            large = b"x" * 2000
            with pytest.raises(BrokenInvariant, match="at most 1000"):
                await link.send(StoreSet("group", "key", large))
            await link.send(Offer(1))
            assert await hub.receive() == ("a.1", Offer(1))
            with pytest.raises(BrokenInvariant, match="at most 1000"):
                hub.send("a.1", StoreValue("group", "key", large))

    asyncio.run(scene())


def test_a_peer_that_reads_nothing_blocks_no_other_peer(stranger: "zmq.Socket[bytes]") -> None:
    async def scene() -> None:
        async with hub_at() as hub, link_to(hub.address, "honest.1") as honest:
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


# ── lost connections ────────────────────────────────────────────────────────────────────────


class Cable:
    """A TCP relay that can be cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server
        self.num_cuts = 0

    async def plug_in(self) -> str:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Abort all connections; data in transit is lost."""
        writers, self._writers = self._writers, []
        self.num_cuts += bool(writers)
        for writer in writers:
            writer.transport.abort()

    async def unplug(self) -> None:
        self.cut()
        self._server.close()
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, far_writer]
        await asyncio.gather(self._relay(reader, far_writer), self._relay(far_reader, writer))

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(4096):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


def test_no_message_is_lost_or_repeated_over_broken_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fd_socket, "TICK_S", 0.02)
    monkeypatch.setattr(session, "REPEAT_TICKS", 3)
    num, cut_every = 3000, 600

    async def scene() -> None:
        async with hub_at() as hub:
            cable = Cable(int(hub.address.rpartition(":")[2]))
            async with link_to(await cable.plug_in(), "a.1") as link:
                await link.send(Offer(0))
                assert await hub.receive() == ("a.1", Offer(0))

                async def link_hears() -> None:
                    for number in range(num):
                        assert await link.receive() == Stop(str(number))

                hearing = asyncio.create_task(link_hears())
                for number in range(num):
                    await link.send(Offer(number))
                    hub.send("a.1", Stop(str(number)))
                for number in range(num):
                    assert await hub.receive() == ("a.1", Offer(number))
                    if number % cut_every == cut_every // 2:
                        cable.cut()
                await hearing
                assert cable.num_cuts > 1
            await cable.unplug()

    asyncio.run(scene())


def test_a_reconnected_link_replaces_its_dead_connection(stranger: "zmq.Socket[bytes]") -> None:
    async def scene() -> None:
        async with hub_at() as hub:
            stranger.connect(hub.address)
            stranger.send(frame(1, 0, Offer(1)))
            assert await hub.receive() == ("stranger.1", Offer(1))
            again = stranger.context.socket(zmq.DEALER)
            again.setsockopt(zmq.LINGER, 0)
            again.setsockopt(zmq.ROUTING_ID, b"stranger.1")
            again.connect(hub.address)
            again.send(frame(2, 0, Offer(2)))
            assert await hub.receive() == ("stranger.1", Offer(2))
            again.close()

    asyncio.run(scene())


def test_a_link_to_a_restarted_hub_is_reset_at_its_next_send() -> None:
    async def scene() -> None:
        async with hub_at() as former, link_to(former.address, "a.1") as link:
            await link.send(Offer(1))
            await former.receive()
            former.send("a.1", Stop("which acknowledges the first"))
            await link.receive()
            await former.aclose()
            restarted = await bound_again(former.address)
            await link.send(Offer(2))
            with pytest.raises(LinkReset, match="restarted"):
                await link.receive()
            await restarted.aclose()

    asyncio.run(scene())


async def bound_again(address: str) -> ZmqHub:
    """Bind as soon as ZeroMQ frees the port, which may be later than the close of its socket."""
    while True:
        try:
            return ZmqHub(address, CODEC)
        except LinkError:
            await asyncio.sleep(0)


# ── flow ────────────────────────────────────────────────────────────────────────────────────


def test_a_sender_waits_while_the_receiver_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_link, "MAX_UNACKED_BYTES", 60_000)
    monkeypatch.setattr(zmq_link, "MAX_INBOX_BYTES", 10_000)
    num, message_bytes = 1000, 1000

    async def scene() -> None:
        async with hub_at() as hub, link_to(hub.address, "a.1") as link:
            num_sent = 0

            async def flood() -> None:
                nonlocal num_sent
                for number in range(num):
                    await link.send(StoreSet("group", str(number), b"x" * message_bytes))
                    num_sent += 1

            flooding = asyncio.create_task(flood())
            for number in range(num):
                _, message = await hub.receive()
                assert message == StoreSet("group", str(number), b"x" * message_bytes)
                # Received, queued in the inbox, and unacknowledged; the last two may exceed their limit by a frame.
                assert num_sent <= number + 1 + (10_000 + 60_000) / message_bytes + 2
            await flooding

    asyncio.run(scene())


def test_closing_a_link_without_a_peer_fails_its_waiting_send(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_link, "MAX_UNACKED_BYTES", 1)
    monkeypatch.setattr(zmq_link, "LINGER_MS", 1)

    async def scene() -> None:
        async with asyncio.timeout(DEADLINE_S), link_to("tcp://127.0.0.1:9", "a.1") as link:
            await link.send(Offer(1))
            waiting = asyncio.create_task(link.send(Offer(2)))
            await asyncio.sleep(0)
            assert not waiting.done()
            await link.aclose()
            with pytest.raises(LinkClosed):
                await waiting

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

        async with hub_at() as hub:
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


def test_messages_arrive_without_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fd_socket, "TICK_S", 3600.0)

    async def scene() -> None:
        async with hub_at() as hub, link_to(hub.address, "a.1") as link:
            for number in range(1000):
                await link.send(Offer(number))
                assert await hub.receive() == ("a.1", Offer(number))
                hub.send("a.1", Stop(str(number)))
                assert await link.receive() == Stop(str(number))

    asyncio.run(scene())


# ── addresses ───────────────────────────────────────────────────────────────────────────────


def test_a_busy_port_is_reported_in_one_sentence() -> None:
    async def scene() -> None:
        async with hub_at() as hub:
            with pytest.raises(LinkError) as raised:
                ZmqHub(hub.address, CODEC)
            assert str(raised.value) == (
                f"cannot bind {hub.address}: the port is in use; stop what holds it, or bind port 0"
            )

    asyncio.run(scene())


@pytest.mark.parametrize("address", ["tcp://", "127.0.0.1:1", "tcp://127.0.0.1:x", "carrier-pigeon://1"])
def test_an_invalid_address_is_reported_in_one_sentence(address: str) -> None:
    async def scene() -> None:
        with pytest.raises(LinkError, match=f"cannot bind {address}: "):
            ZmqHub(address, CODEC)
        with pytest.raises(LinkError, match=f"cannot connect to {address} as 'a.1': "):
            ZmqLink(address, "a.1", CODEC)

    asyncio.run(scene())


def test_an_invalid_identity_is_reported_in_one_sentence() -> None:
    async def scene() -> None:
        with pytest.raises(LinkError, match=r"cannot connect to tcp://127\.0\.0\.1:9 as 'aaa"):
            ZmqLink("tcp://127.0.0.1:9", "a" * 256, CODEC)

    asyncio.run(scene())


def test_a_local_actor_is_a_peer_like_a_remote_one() -> None:
    async def scene() -> None:
        async with hub_at() as hub, link_to(hub.address, "far.1") as far:
            near = hub.connect_local("near.1")
            for link, peer in ((far, "far.1"), (near, "near.1")):
                await link.send(Offer(1))
                assert await hub.receive() == (peer, Offer(1))
                hub.send(peer, Stop(peer))
                assert await link.receive() == Stop(peer)
            hub.forget("near.1")
            with pytest.raises(LinkReset):
                await near.receive()

    asyncio.run(scene())


def test_a_peer_that_stops_answering_is_reported_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the peer is gone and was not restarted."""
    monkeypatch.setattr(fd_socket, "TICK_S", 0.001)
    monkeypatch.setattr(zmq_link, "SILENT_TICKS", 20)

    async def outlive() -> str:
        async with hub_at() as hub, link_to(hub.address, "left.1") as link:
            await link.send(Offer(1))
            peer, _ = await hub.receive()
            hub.send(peer, Stop("hello"))
            await link.receive()
            await hub.aclose()
            await link.send(Offer(2))
            with pytest.raises(LinkError, match="has not answered for") as caught:
                async with asyncio.timeout(DEADLINE_S):
                    await link.receive()
            return f"{hub.address} {caught.value}"

    address, _, sentence = asyncio.run(outlive()).partition(" ")
    assert sentence.startswith(address)


def test_an_announced_peer_that_never_answers_is_reported_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, the spool of a broker that died after it sent the address of the spool."""
    monkeypatch.setattr(fd_socket, "TICK_S", 0.001)
    monkeypatch.setattr(zmq_link, "SILENT_TICKS", 20)

    async def wait() -> None:
        link = ZmqLink("tcp://127.0.0.1:9", "left.1", CODEC, is_there=True)
        await link.send(Offer(1))
        try:
            async with asyncio.timeout(DEADLINE_S):
                await link.receive()
        finally:
            await link.aclose()

    with pytest.raises(LinkError, match=r"tcp://127\.0\.0\.1:9 has not answered for"):
        asyncio.run(wait())
