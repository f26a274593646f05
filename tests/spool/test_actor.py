"""`Stored` is sent only for durable payloads, and fetches are answered in order."""

import asyncio
import hashlib
import resource
import shutil
import threading
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from asyncrl.errors import LinkClosed, LinkRefused, LinkReset, RunFailed
from asyncrl.messages.codec import Message
from asyncrl.messages.permit import Permits
from asyncrl.messages.session import Bye, Reject, Stop
from asyncrl.messages.spool import Fetch, Fetched, Permit, Put, PutItem, SpoolRef, Stored, StoredItem, Trim
from asyncrl.messages.trajectory import Image, TrajectorySummary, Unit
from asyncrl.messages.weights import (
    FetchedWeights,
    FetchWeights,
    ListWeights,
    PutWeights,
    PutWeightsDone,
    StoredWeights,
    WeightsFile,
    WeightsList,
)
from asyncrl.records.metrics import METRICS
from asyncrl.spool.actor import MAX_REFS, SpoolActor
from asyncrl.spool.images import ImageStore
from asyncrl.spool.segment_writer import segment_path
from asyncrl.spool.segments import Segments
from asyncrl.spool.weights import WeightStore
from asyncrl.wire.curve import Owner
from asyncrl.wire.files import MAX_PAYLOAD_BYTES

RED = Image(hashlib.sha256(b"red").digest(), 8, 8, 3)
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
        self.owners: dict[str, Owner] = {}

    def send(self, peer: str, message: Message, /) -> None:
        self.sent.put_nowait((peer, message))

    async def receive(self) -> tuple[str, Message]:
        heard = await self.heard.get()
        if heard is None:
            raise LinkClosed("the hub was closed")
        return heard

    refused_key = None

    def owner(self, peer: str, /) -> Owner | None:
        return self.owners.get(peer)

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

    def __init__(
        self,
        segments: Segments,
        weights: WeightStore | None = None,
        images: ImageStore | None = None,
        permits: Permits = Permits(),  # noqa: B008  stateless
    ) -> None:
        self.segments = segments
        self.hub = ScriptedHub()
        self.link = ScriptedLink()
        actor = SpoolActor("s0", segments, self.hub, self.link, weights=weights, images=images, permits=permits)
        self.actor = asyncio.create_task(actor.run())

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


def play(
    segments: Segments,
    script: Callable[[Scene], Awaitable[None]],
    weights: WeightStore | None = None,
    images: ImageStore | None = None,
    permits: Permits = Permits(),  # noqa: B008  stateless
) -> None:
    """Run ``script`` against a spool, then stop the spool; raises the error of a failed actor."""

    async def run() -> None:
        scene = Scene(segments, weights, images, permits)
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


def test_a_spool_whose_place_is_taken_is_refused(tmp_path: Path) -> None:
    async def script(scene: Scene) -> None:
        scene.link.heard.put_nowait(Reject("another process has joined as s0"))

    with pytest.raises(LinkRefused, match="another process has joined as s0"):
        play(Segments(tmp_path), script)


def test_stored_has_the_items_of_a_put_and_their_places(tmp_path: Path) -> None:
    async def script(scene: Scene) -> None:
        scene.hear(put(b"alpha", b"beta"))
        alpha, beta = await scene.stored(2)

        assert alpha.ref == SpoolRef("s0", 0, alpha.ref.offset, 5, zlib.crc32(b"alpha"))
        assert (alpha.unit, alpha.lease_id, alpha.summary) == (Unit(0, 0), 1, SUMMARY)
        assert beta.unit == Unit(1, 0)

    play(Segments(tmp_path), script)


def test_only_what_a_lease_allows_reaches_the_disk(tmp_path: Path) -> None:
    permits = Permits(b"key")
    of_lease = permits.grant(1, 0, "train", [0])

    def item(group_id: int, lease_id: int, permit: Permit) -> PutItem:
        return PutItem(Unit(group_id, 0), lease_id, SUMMARY, memoryview(b"payload"), permit)

    async def script(scene: Scene) -> None:
        none = [item(0, 1, Permit()), item(0, 2, of_lease), item(1, 1, of_lease), item(0, 1, Permit([0], bytes(16)))]
        scene.hear(Put("r0", "b7", none))
        scene.hear(Put("r0", "b7", [*none, item(0, 1, of_lease)]))
        (stored,) = await scene.stored(1)
        assert (stored.unit, stored.lease_id, stored.permit) == (Unit(0, 0), 1, of_lease)
        assert len(scene.segments) == 1

    play(Segments(tmp_path), script, permits=permits)


def test_a_node_that_holds_half_of_the_room_stores_no_more_beside_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr("asyncrl.spool.segments.shutil.disk_usage", lambda _: disk)

    async def script(scene: Scene) -> None:
        scene.hear(Put("r1", "b8", put(bytes(10), first=9).items))
        await scene.link.sent.get()
        scene.hear(put(bytes(50)))
        assert len(await scene.stored(1)) == 1
        scene.hear(put(bytes(50), first=1))
        scene.hear(put(bytes(1), first=2))
        assert [item.unit.group_id for item in await scene.stored(1)] == [2]
        assert len(scene.segments) == 3

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


def test_its_metrics_count_what_was_written_once(tmp_path: Path) -> None:
    found: dict[str, float] = {}

    async def script(scene: Scene) -> None:
        for _ in range(2):
            scene.hear(put(b"alpha", b"beta"))
            await scene.stored(2)
        actor = SpoolActor("s0", segments, scene.hub, scene.link)
        found.update({sample.name: sample.value for sample in actor.metrics()})

    segments = Segments(tmp_path)
    play(segments, script)
    assert set(found) == {name for name, metric in METRICS.items() if metric.owner == "spool"}
    names = ("payloads", "segments", "written_bytes_total", "syncs_total")
    assert [found[f"asyncrl_spool_{name}"] for name in names] == [2, 1, 9, 1]
    assert 0 < found["asyncrl_spool_disk_free_bytes"] < found["asyncrl_spool_disk_size_bytes"]


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


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_a_fetch_of_too_much_is_refused_and_the_spool_serves_on(tmp_path: Path, cache_bytes: int) -> None:
    segments = Segments(tmp_path, cache_bytes=cache_bytes)

    async def script(scene: Scene) -> None:
        scene.hear(put(b"x" * 1000))
        (stored,) = await scene.stored(1)
        num = MAX_PAYLOAD_BYTES // 1000 + 1

        assert await scene.fetch(*[stored.ref] * num) == [b""] * num
        assert await scene.fetch(*[replace(stored.ref, length=0)] * (MAX_REFS + 1)) == [b""] * (MAX_REFS + 1)
        debt = replace(stored.ref, length=-MAX_PAYLOAD_BYTES)
        assert await scene.fetch(debt, *[stored.ref] * num) == [b""] * (num + 1)
        assert await scene.fetch(stored.ref, stored.ref) == [b"x" * 1000] * 2

    with capture_logs() as logs:
        play(segments, script)
    assert [line["event"] for line in logs] == ["spool.fetch_refused"] * 3


def test_a_payload_too_large_for_an_answer_is_refused_and_the_spool_serves_on(tmp_path: Path) -> None:
    """A rollout with a bug may have stored it."""

    async def script(scene: Scene) -> None:
        scene.hear(put(b"x" * (MAX_PAYLOAD_BYTES + 1), b"small"))
        large, small = (fact.ref for fact in await scene.stored(2))
        assert await scene.fetch(large) == [b""]
        assert await scene.fetch(small) == [b"small"]

    play(Segments(tmp_path), script)


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


def test_what_the_holder_of_a_key_may_not_send_is_neither_stored_nor_answered(tmp_path: Path) -> None:
    async def script(scene: Scene) -> None:
        scene.hub.owners["thief"] = Owner("reward-0", frozenset(("reward",)))
        scene.hear(put(b"forged"), "thief")
        scene.hear(Trim(9), "thief")
        scene.hear(PutWeights(StoredWeights(3, "l", "v3", 1), 0, 0, memoryview(b""), is_last=True), "thief")
        scene.hear(put(b"sound", first=1))
        assert [item.unit for item in await scene.stored(1)] == [Unit(1, 0)]

    play(Segments(tmp_path), script)


def test_weights_are_stored_listed_and_served(tmp_path: Path) -> None:
    weights, crc32 = StoredWeights(3, "layout", "v3", 1), zlib.crc32(b"part")

    async def script(scene: Scene) -> None:
        scene.hear(PutWeights(weights, 0, crc32, memoryview(b"part"), is_last=True), peer="trainer.weights-0")
        scene.hear(ListWeights(), peer="far.weights-0")
        scene.hear(FetchWeights(weights, 0), peer="far.weights-0")
        answers = [await scene.hub.sent.get() for _ in range(3)]

        assert answers == [
            ("trainer.weights-0", PutWeightsDone(0)),
            ("far.weights-0", WeightsList([WeightsFile(weights, 1, 4)])),
            ("far.weights-0", FetchedWeights(0, memoryview(b"part"), crc32)),
        ]

    play(Segments(tmp_path), script, WeightStore(tmp_path / "weights"))


def test_a_trajectory_is_served_while_weights_are_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write = threading.Event()
    store = WeightStore(tmp_path / "weights")
    answer = store.answer

    def slow(message: PutWeights) -> object:
        may_write.wait(10.0)
        return answer(message)

    monkeypatch.setattr(store, "answer", slow)

    async def script(scene: Scene) -> None:
        scene.hear(PutWeights(StoredWeights(3, "l", "v3", 1), 0, 0, memoryview(b""), is_last=True), peer="trainer.w")
        scene.hear(put(b"alpha"))
        (stored,) = await scene.stored(1)
        assert await scene.fetch(stored.ref) == [b"alpha"]
        may_write.set()
        assert (await scene.hub.sent.get())[0] == "trainer.w"

    play(Segments(tmp_path), script, store)


def test_pictures_are_answered_after_the_payloads_and_unknown_ones_are_empty(tmp_path: Path) -> None:
    async def script(scene: Scene) -> None:
        scene.hear(put(b"one"))
        (item,) = await scene.stored(1)
        scene.hear(Fetch(17, [item.ref], [RED.digest, bytes(32)]))
        _, answer = await scene.hub.sent.get()
        assert isinstance(answer, Fetched)
        assert [bytes(payload) for payload in answer.payloads] == [b"one", b"red", b""]

    store = ImageStore(tmp_path)
    store.add(RED, b"red")
    play(Segments(tmp_path), script, images=store)
    store.close()


def test_a_spool_without_pictures_has_none(tmp_path: Path) -> None:
    async def script(scene: Scene) -> None:
        scene.hear(Fetch(17, [], [RED.digest]))
        _, answer = await scene.hub.sent.get()
        assert answer == Fetched(17, [memoryview(b"")])

    play(Segments(tmp_path), script)


def test_more_pictures_than_may_be_asked_for_are_refused(tmp_path: Path) -> None:
    async def script(scene: Scene) -> None:
        scene.hear(Fetch(17, [], [RED.digest] * (MAX_REFS + 1)))
        _, answer = await scene.hub.sent.get()
        assert answer == Fetched(17, [memoryview(b"")] * (MAX_REFS + 1))

    play(Segments(tmp_path), script)


def test_pictures_are_counted_by_node_whatever_its_link_and_its_incarnation(tmp_path: Path) -> None:
    async def script(scene: Scene) -> None:
        for peer in ("gpu.a-1.18ea-3.1", "gpu.a-1.18eb-4.2", "broker.77"):
            scene.hear(Fetch(17, [], [RED.digest] * 2), peer)
            await scene.hub.sent.get()

    store = ImageStore(tmp_path)
    store.add(RED, b"red")
    play(Segments(tmp_path), script, images=store)
    assert store.num_sent == {"gpu.a-1": 4, "broker": 2}
    store.close()
