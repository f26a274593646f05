"""Faults that only a link's socket has: lost connections, hubs that restart or fall silent, full queues."""

import asyncio
import time
from collections.abc import Callable

import pytest
import zmq

from asyncrl.errors import BrokenInvariant, LinkClosed, LinkError, LinkReset
from asyncrl.messages.rollout import Offer
from asyncrl.messages.session import Bye, Held, Hello, Stop, StoreSet, StoreValue
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trainer import Batch, ScoredTrajectory
from asyncrl.messages.trajectory import TrajectorySummary, Unit
from asyncrl.messages.wire import CODEC, PROTOCOL
from asyncrl.wire import session, sockets, zmq_link
from asyncrl.wire.curve import hub_keys_of, link_keys_of, secure_hub, secure_link
from asyncrl.wire.session import Limits
from asyncrl.wire.zmq_hub import ZmqHub
from asyncrl.wire.zmq_link import ConnectionMonitor, ConnectionRefusal, ZmqLink
from tests.wire.ends import ANY_SOCKET, DEADLINE_S, HOSTILE, SECRET, frame, hub_at, link_to

# ── hostile peers ───────────────────────────────────────────────────────────────────────────


def test_a_hostile_hub_cannot_break_a_link() -> None:
    async def scene() -> None:
        context = zmq.Context()
        router = context.socket(zmq.ROUTER)
        router.setsockopt(zmq.LINGER, 0)
        router.bind(ANY_SOCKET)
        address = router.getsockopt_string(zmq.LAST_ENDPOINT)
        async with asyncio.timeout(DEADLINE_S), link_to(address, "a.1") as link:
            await link.send(Offer(1))
            peer, _ = await asyncio.to_thread(router.recv_multipart)
            for frames in HOSTILE[:7]:
                router.send_multipart([peer, *frames])
            router.send_multipart([peer, frame(1, 1, Stop("sense"))])
            assert await link.receive() == Stop("sense")
        context.destroy(linger=0)

    asyncio.run(scene())


def test_an_oversize_message_is_refused_before_it_is_sent() -> None:
    async def scene() -> None:
        limits = Limits(frame=1000, message=1500)
        async with hub_at(limits=limits) as hub, link_to(hub.address, "a.1", limits=limits) as link:
            large = b"x" * 2000
            with pytest.raises(BrokenInvariant, match="at most 1500"):
                await link.send(StoreSet("group", "key", large))
            await link.send(Offer(1))
            assert await hub.receive() == ("a.1", Offer(1))
            with pytest.raises(BrokenInvariant, match="at most 1500"):
                hub.send("a.1", StoreValue("group", "key", large))

    asyncio.run(scene())


def test_a_message_larger_than_a_frame_arrives_whole_in_both_directions() -> None:
    async def scene() -> None:
        limits = Limits(frame=1000)
        value = bytes(range(256)) * 4000
        async with hub_at(limits=limits) as hub, link_to(hub.address, "a.1", limits=limits) as link:
            for number in range(3):
                await link.send(StoreSet("group", str(number), value))
                await link.send(Offer(number))
                assert await hub.receive() == ("a.1", StoreSet("group", str(number), value))
                assert await hub.receive() == ("a.1", Offer(number))
                hub.send("a.1", StoreValue("group", str(number), value))
                hub.send("a.1", Stop("after it"))
                assert await link.receive() == StoreValue("group", str(number), value)
                assert await link.receive() == Stop("after it")

    asyncio.run(scene())


def test_a_hello_with_a_hundred_thousand_held_trajectories_arrives() -> None:
    held = [Held(Unit(index, 7), 1 << 33, 3) for index in range(100_000)]
    hello = Hello(PROTOCOL, "rollout", "rollout-0", "b7", held)

    async def scene() -> None:
        limits = Limits(frame=1 << 16)
        async with hub_at(limits=limits) as hub, link_to(hub.address, "a.1", limits=limits) as link:
            await link.send(hello)
            assert await hub.receive() == ("a.1", hello)

    asyncio.run(scene())


def test_a_batch_of_a_hundred_thousand_trajectories_arrives() -> None:
    summary = TrajectorySummary(66_000, 1000, 3, 4, 2, "stop")
    ref = SpoolRef("spool-0", 12, 1 << 27, 540_000, 1 << 31)
    batch = Batch(3, [ScoredTrajectory(Unit(i, 7), ref, 0.5, {"correct": 1.0}, summary) for i in range(100_000)])

    async def scene() -> None:
        async with hub_at() as hub, link_to(hub.address, "trainer.1") as link:
            await link.send(Offer(1))
            await hub.receive()
            hub.send("trainer.1", batch)
            assert await link.receive() == batch

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


@pytest.mark.parametrize("num_bytes", [10, 1500], ids=["whole", "in parts"])
def test_no_message_is_lost_or_repeated_over_broken_connections(
    monkeypatch: pytest.MonkeyPatch, num_bytes: int
) -> None:
    monkeypatch.setattr(sockets, "TICK_S", 0.02)
    monkeypatch.setattr(session, "REPEAT_TICKS", 3)
    num, cut_every = 3000, 600
    limits = Limits(frame=500)

    def text(number: int) -> str:
        return f"{number:0{num_bytes}}"

    async def scene() -> None:
        async with hub_at(limits=limits) as hub:
            cable = Cable(int(hub.address.rpartition(":")[2]))
            async with link_to(await cable.plug_in(), "a.1", limits=limits) as link:
                await link.send(Offer(0))
                assert await hub.receive() == ("a.1", Offer(0))

                async def link_hears() -> None:
                    for number in range(num):
                        assert await link.receive() == Stop(text(number))

                hearing = asyncio.create_task(link_hears())
                for number in range(num):
                    await link.send(Bye(text(number)))
                    hub.send("a.1", Stop(text(number)))
                for number in range(num):
                    assert await hub.receive() == ("a.1", Bye(text(number)))
                    if number % cut_every == cut_every // 2:
                        cable.cut()
                await hearing
                assert cable.num_cuts > 1
            await cable.unplug()

    asyncio.run(scene())


def test_a_reconnected_link_replaces_its_dead_connection(stranger: "zmq.Socket[bytes]") -> None:
    async def scene() -> None:
        async with hub_at(ANY_SOCKET) as hub:
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
            return ZmqHub(address, CODEC, keys=hub_keys_of(SECRET))
        except LinkError:
            await asyncio.sleep(0)


# ── flow ────────────────────────────────────────────────────────────────────────────────────


def test_a_sender_waits_while_the_receiver_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_link, "MAX_INBOX_BYTES", 10_000)
    num, message_bytes = 1000, 1000

    async def scene() -> None:
        async with hub_at() as hub, link_to(hub.address, "a.1", limits=Limits(unacked=60_000)) as link:
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
    monkeypatch.setattr(zmq_link, "LINGER_MS", 1)

    async def scene() -> None:
        async with asyncio.timeout(DEADLINE_S), link_to("tcp://127.0.0.1:9", "a.1", limits=Limits(unacked=1)) as link:
            await link.send(Offer(1))
            waiting = asyncio.create_task(link.send(Offer(2)))
            await asyncio.sleep(0)
            assert not waiting.done()
            await link.aclose()
            with pytest.raises(LinkClosed):
                await waiting

    asyncio.run(scene())


def test_a_link_whose_closing_is_cancelled_is_closed() -> None:
    async def scene() -> None:
        async with asyncio.timeout(DEADLINE_S), link_to("tcp://127.0.0.1:9", "a.1") as link:
            await link.send(Offer(1))
            closing = asyncio.create_task(link.aclose())
            await asyncio.sleep(0)
            assert not closing.done(), "it waits for the acknowledgement"
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
            assert link._fd.closed

    asyncio.run(scene())


def test_messages_arrive_without_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "TICK_S", 3600.0)

    async def scene() -> None:
        async with hub_at() as hub, link_to(hub.address, "a.1") as link:
            for number in range(1000):
                await link.send(Offer(number))
                assert await hub.receive() == ("a.1", Offer(number))
                hub.send("a.1", Stop(str(number)))
                assert await link.receive() == Stop(str(number))

    asyncio.run(scene())


# ── addresses ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("address", ["tcp://", "127.0.0.1:1", "tcp://127.0.0.1:x", "carrier-pigeon://1"])
def test_an_invalid_address_is_reported_in_one_sentence(address: str) -> None:
    async def scene() -> None:
        with pytest.raises(LinkError, match=f"cannot bind {address}: "):
            ZmqHub(address, CODEC, keys=hub_keys_of(SECRET))
        with pytest.raises(LinkError, match=f"cannot connect to {address} as 'a.1': "):
            ZmqLink(address, "a.1", CODEC, keys=link_keys_of(SECRET))

    asyncio.run(scene())


def test_an_invalid_identity_is_reported_in_one_sentence() -> None:
    async def scene() -> None:
        with pytest.raises(LinkError, match=r"cannot connect to tcp://127\.0\.0\.1:9 as 'aaa"):
            ZmqLink("tcp://127.0.0.1:9", "a" * 256, CODEC, keys=link_keys_of(SECRET))

    asyncio.run(scene())


def test_a_peer_that_stops_answering_is_reported_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the peer is gone and was not restarted."""
    monkeypatch.setattr(sockets, "TICK_S", 0.001)
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
    monkeypatch.setattr(sockets, "TICK_S", 0.001)
    monkeypatch.setattr(zmq_link, "SILENT_TICKS", 20)

    async def wait() -> None:
        link = ZmqLink("tcp://127.0.0.1:9", "left.1", CODEC, keys=link_keys_of(SECRET), is_there=True)
        await link.send(Offer(1))
        try:
            async with asyncio.timeout(DEADLINE_S):
                await link.receive()
        finally:
            await link.aclose()

    with pytest.raises(LinkError, match=r"tcp://127\.0\.0\.1:9 has not answered for"):
        asyncio.run(wait())


# ── connection monitor ─────────────────────────────────────────────────────────────────────────


OTHER = bytes([1] * 32)


def until(is_true: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + DEADLINE_S
    while not (found := is_true()) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return found


def test_a_peer_with_another_secret_is_noticed_until_one_with_the_same_answers() -> None:
    context = zmq.Context()
    hub, link = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    secure_hub(hub, "tcp://", hub_keys_of(SECRET))
    address = f"tcp://127.0.0.1:{hub.bind_to_random_port('tcp://127.0.0.1')}"
    secure_link(link, address, link_keys_of(OTHER))
    monitor = ConnectionMonitor(link)
    link.connect(address)
    assert monitor.refusal() is None
    assert until(lambda: monitor.refusal() is ConnectionRefusal.HUB)
    link.disconnect(address)
    secure_link(link, address, link_keys_of(SECRET))
    link.connect(address)
    assert until(lambda: monitor.refusal() is None)
    monitor.close()
    monitor.close()
    context.destroy(linger=0)


def test_a_peer_without_keys_is_noticed() -> None:
    context = zmq.Context()
    hub, link = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    address = f"tcp://127.0.0.1:{hub.bind_to_random_port('tcp://127.0.0.1')}"
    secure_link(link, address, link_keys_of(SECRET))
    monitor = ConnectionMonitor(link)
    link.connect(address)
    assert until(lambda: monitor.refusal() is ConnectionRefusal.HUB)
    monitor.close()
    context.destroy(linger=0)
