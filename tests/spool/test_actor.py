"""`Stored` is sent only for durable payloads, and fetches are answered in order."""

import asyncio
import resource
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from asyncrl.actor.message import Message
from asyncrl.errors import LinkClosed, LinkReset, RunFailed
from asyncrl.messages import (
    Bye,
    Fetch,
    Fetched,
    Put,
    PutItem,
    SpoolRef,
    Stop,
    Stored,
    StoredItem,
    TrajectorySummary,
    Trim,
    Unit,
)
from asyncrl.spool.actor import SpoolActor
from asyncrl.spool.segment_format import segment_path
from asyncrl.spool.segments import Segments

SUMMARY = TrajectorySummary(
    num_tokens=1, prompt_tokens=1, oldest_version=0, newest_version=0, num_spans=1, finish_reason="stop"
)


class ScriptedHub:
    """A hub with scripted peers."""

    address = "test"

    def __init__(self) -> None:
        self.heard: asyncio.Queue[tuple[str, Message] | None] = asyncio.Queue()
        self.sent: asyncio.Queue[tuple[str, Message]] = asyncio.Queue()
        self.forgotten: list[str] = []

    def send(self, peer: str, message: Message, /) -> None:
        self.sent.put_nowait((peer, message))

    async def receive(self) -> tuple[str, Message]:
        heard = await self.heard.get()
        if heard is None:
            raise LinkClosed("the hub was closed")
        return heard

    def forget(self, peer: str, /) -> None:
        self.forgotten.append(peer)

    async def aclose(self) -> None:
        self.heard.put_nowait(None)


class ScriptedLink:
    """A link with a scripted broker. ``heard.join()`` waits until every message was handled."""

    def __init__(self) -> None:
        self._is_acting = False
        self.heard: asyncio.Queue[Message | Exception] = asyncio.Queue()
        self.sent: asyncio.Queue[Message] = asyncio.Queue()

    async def send(self, message: Message, /) -> None:
        self.sent.put_nowait(message)

    async def receive(self) -> Message:
        if self._is_acting:
            self.heard.task_done()
        heard = await self.heard.get()
        self._is_acting = True
        if isinstance(heard, Exception):
            raise heard
        return heard

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            try:
                yield await self.receive()
            except LinkClosed:
                return

    async def aclose(self) -> None:
        self.heard.put_nowait(LinkClosed("closed"))


class Scene:
    """A running spool, its peers and its broker."""

    def __init__(self, segments: Segments) -> None:
        self.segments = segments
        self.hub = ScriptedHub()
        self.link = ScriptedLink()
        self.actor = asyncio.create_task(SpoolActor("s0", segments, self.hub, self.link).run())

    def hear(self, message: Message, peer: str = "peer") -> None:
        self.hub.heard.put_nowait((peer, message))

    async def stored(self, num: int) -> list[StoredItem]:
        """Items the broker was sent for ``r0.b7``, once there are ``num``."""
        items: list[StoredItem] = []
        while len(items) < num:
            fact = await self.link.sent.get()
            assert isinstance(fact, Stored)
            assert (fact.node, fact.incarnation) == ("r0", "b7")
            items += fact.items
        return items

    async def fetch(self, *refs: SpoolRef) -> list[bytes]:
        self.hear(Fetch(17, list(refs)), peer="trainer.b1")
        peer, answer = await self.hub.sent.get()
        assert peer == "trainer.b1"
        assert isinstance(answer, Fetched)
        assert answer.request_id == 17
        return [bytes(payload) for payload in answer.payloads]


def put(*payloads: bytes, first: int = 0, lease_id: int = 1) -> Put:
    items = [PutItem(Unit(first + i, 0), lease_id, SUMMARY, memoryview(payload)) for i, payload in enumerate(payloads)]
    return Put("r0", "b7", items)


def play(segments: Segments, script: Callable[[Scene], Awaitable[None]]) -> None:
    """Run ``script`` against a spool, then stop the spool; raises the error of a failed actor."""

    async def run() -> None:
        scene = Scene(segments)
        playing = asyncio.ensure_future(script(scene))
        await asyncio.wait([playing, scene.actor], return_when=asyncio.FIRST_COMPLETED)
        if not playing.done():
            playing.cancel()
        else:
            playing.result()
            scene.link.heard.put_nowait(Stop("the run is over"))
        await scene.actor

    asyncio.run(run())
    segments.close()


def test_stored_has_the_items_of_a_put_and_their_places(tmp_path: Path) -> None:
    async def script(scene: Scene) -> None:
        scene.hear(put(b"alpha", b"beta"))
        alpha, beta = await scene.stored(2)

        assert alpha.ref == SpoolRef("s0", 0, alpha.ref.offset, 5, zlib.crc32(b"alpha"))
        assert (alpha.unit, alpha.lease_id, alpha.summary) == (Unit(0, 0), 1, SUMMARY)
        assert beta.unit == Unit(1, 0)

    play(Segments(tmp_path), script)


def test_puts_written_together_are_reported_once_per_sender(tmp_path: Path) -> None:
    async def script(scene: Scene) -> None:
        one, two, other = put(b"a", b"b"), put(b"c", first=2), put(b"d", first=3)
        for message in (one, Put("r1", "b8", other.items), two):
            scene.hear(message)
        facts = [await scene.link.sent.get() for _ in range(2)]

        assert [(f.node, [i.unit.group_id for i in f.items]) for f in facts if isinstance(f, Stored)] == [
            ("r0", [0, 1, 2]),
            ("r1", [3]),
        ]

    play(Segments(tmp_path), script)


def test_puts_that_arrive_together_share_one_fsync(tmp_path: Path) -> None:
    segments = Segments(tmp_path)

    async def script(scene: Scene) -> None:
        for group_id in range(100):
            scene.hear(put(b"x", first=group_id))
        facts = await scene.stored(100)

        assert [fact.unit.group_id for fact in facts] == list(range(100))

    play(segments, script)
    assert segments.num_syncs <= 3  # the first put may go alone; the rest gathers behind it


def test_a_repeated_put_is_reported_stored_again_and_not_stored_twice(tmp_path: Path) -> None:
    segments = Segments(tmp_path)

    async def script(scene: Scene) -> None:
        scene.hear(put(b"payload"))
        (first,) = await scene.stored(1)
        size = segment_path(tmp_path, 0).stat().st_size
        scene.hear(put(b"payload"))

        assert await scene.stored(1) == [first]
        assert segment_path(tmp_path, 0).stat().st_size == size

    play(segments, script)


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_payloads_come_in_the_order_they_were_asked_for(tmp_path: Path, cache_bytes: int) -> None:
    async def script(scene: Scene) -> None:
        scene.hear(put(b"a", b"b", b"c"))
        a, b, c = (fact.ref for fact in await scene.stored(3))

        assert await scene.fetch(c, a, b, a) == [b"c", b"a", b"b", b"a"]
        assert await scene.fetch() == []

    play(Segments(tmp_path, cache_bytes=cache_bytes), script)


def test_an_unreadable_payload_is_empty_and_the_rest_still_comes(tmp_path: Path) -> None:
    segments = Segments(tmp_path, cache_bytes=0)

    async def script(scene: Scene) -> None:
        scene.hear(put(b"good", b"spoilt"))
        good, spoilt = (fact.ref for fact in await scene.stored(2))
        path = segment_path(tmp_path, 0)
        path.write_bytes(path.read_bytes().replace(b"spoilt", b"rotten"))
        elsewhere = SpoolRef("s1", 0, good.offset, good.length, good.crc32)

        assert await scene.fetch(spoilt, good, elsewhere) == [b"", b"good", b""]

    with capture_logs() as logs:
        play(segments, script)
    unreadable = [line["reason"] for line in logs if line["event"] == "spool.unreadable"]
    assert [f"{tmp_path}/segment_000000.seg at offset" in reason for reason in unreadable] == [True, False]
    assert "'s1'" in unreadable[1]


def test_trim_removes_old_segments_when_the_broker_says_so(tmp_path: Path) -> None:
    segments = Segments(tmp_path, segment_bytes=50, cache_bytes=0)

    async def script(scene: Scene) -> None:
        scene.hear(put(b"o" * 100, b"n" * 100))
        old, new = (fact.ref for fact in await scene.stored(2))
        scene.link.heard.put_nowait(Trim(1))
        await scene.link.heard.join()

        assert await scene.fetch(old, new) == [b"", b"n" * 100]

    play(segments, script)


def test_a_full_disk_stops_the_spool_before_anything_is_reported_stored(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def script(scene: Scene) -> None:
        scene.hear(put(b"x" * 10_000))
        await scene.stored(1)

    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(RunFailed, match="the spool cannot write"):
            play(segments, script)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    segments.close()


def test_a_restarted_broker_ends_the_actor_and_the_next_one_knows_the_stored_payloads(tmp_path: Path) -> None:
    segments = Segments(tmp_path)

    async def lose_the_broker(scene: Scene) -> None:
        scene.hear(put(b"payload"))
        await scene.stored(1)
        scene.link.heard.put_nowait(LinkReset("the broker restarted"))
        await asyncio.wait([scene.actor])

    async def put_again(scene: Scene) -> None:
        scene.hear(put(b"payload"))
        assert [fact.unit for fact in await scene.stored(1)] == [Unit(0, 0)]
        assert len(segments) == 1

    async def both() -> None:
        scene = Scene(segments)
        await lose_the_broker(scene)
        with pytest.raises(LinkReset):
            scene.actor.result()
        scene = Scene(segments)
        await put_again(scene)
        await scene.link.aclose()
        await scene.actor

    asyncio.run(both())
    segments.close()


def test_a_closed_hub_ends_the_actor_and_a_peer_that_leaves_is_forgotten(tmp_path: Path) -> None:
    async def script(scene: Scene) -> None:
        scene.hear(Bye("drained"), peer="r0.b7")
        await scene.hub.aclose()
        await scene.actor
        assert scene.hub.forgotten == ["r0.b7"]

    play(Segments(tmp_path), script)
