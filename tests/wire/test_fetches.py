"""Requests are answered once, over whatever link is there; `test_payloads` has the order and the bounds."""

import asyncio
import hashlib
import zlib
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from asyncrl.errors import DecodeError, LinkError, LinkReset, SpoolAway
from asyncrl.messages.spool import Fetch, Fetched, SpoolRef, SpoolSet
from asyncrl.messages.trajectory import Image, Span, Trajectory, Unit
from asyncrl.wire.files import CHUNK_BYTES
from asyncrl.wire.memory import MemoryHub
from asyncrl.wire.spools import MAX_REFS, MAX_REQUESTED_BYTES, FetchQueue, ImageCache, PayloadClient, read_trajectory
from tests.wire.only_spool import only

REF = SpoolRef("a", 0, 16, 5, 0)
IMAGE = Image(bytes(32), 8, 8, 3)
PAYLOAD = memoryview(b"hello")


def test_a_lost_link_is_an_error_and_the_next_one_is_asked_again() -> None:
    async def scene() -> None:
        queue, hub = FetchQueue(), MemoryHub()
        payload = queue.request(REF, waits=True)
        running = asyncio.create_task(queue.run(hub.connect("t")))
        await hub.receive()
        hub.forget("t")
        with pytest.raises(LinkReset):
            await running

        running = asyncio.create_task(queue.run(hub.connect("t")))
        _, fetch = await hub.receive()
        assert isinstance(fetch, Fetch)
        hub.send("t", Fetched(fetch.request_id, [PAYLOAD]))
        assert await payload == PAYLOAD
        await hub.aclose()
        with pytest.raises(LinkError, match="the link to the spool is closed"):
            await running

    asyncio.run(scene())


def test_pictures_and_payloads_are_requested_together_and_told_apart() -> None:
    async def scene() -> None:
        queue, hub = FetchQueue(), MemoryHub()
        image, payload = queue.request(IMAGE, waits=True), queue.request(REF, waits=True)
        running = asyncio.create_task(queue.run(hub.connect("t")))
        _, fetch = await hub.receive()
        assert fetch == Fetch(1, [REF], [IMAGE.digest])
        hub.send("t", Fetched(1, [PAYLOAD, memoryview(b"red")]))
        assert (await payload, await image) == (PAYLOAD, memoryview(b"red"))
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(scene())


def test_callers_that_gave_up_are_not_asked_for_again() -> None:
    async def scene() -> None:
        queue, hub = FetchQueue(), MemoryHub()
        queue.request(REF, waits=True).cancel()
        kept = queue.request(SpoolRef("a", 1, 16, 5, 0), waits=True)
        running = asyncio.create_task(queue.run(hub.connect("t")))
        _, fetch = await hub.receive()
        assert isinstance(fetch, Fetch)
        assert [ref.segment for ref in fetch.refs] == [1]
        queue.give_up()
        assert await kept is None
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(scene())


def test_only_callers_that_do_not_wait_hear_that_the_spool_is_away() -> None:
    async def scene() -> None:
        queue = FetchQueue()
        patient, hasty = (queue.request(REF, waits=waits) for waits in (True, False))
        queue.fail_pending(SpoolAway("the spool a is away"))
        assert not patient.done()
        with pytest.raises(SpoolAway):
            await hasty

    asyncio.run(scene())


# ── test images ───────────────────────────────────────────────────────────────────────────────
# One fetch for each picture, however many callers and sessions.

CONTENTS = [bytes([number]) * 10 for number in range(4)]
IMAGES = [Image(hashlib.sha256(content).digest(), 1, 1, len(content)) for content in CONTENTS]
BY_DIGEST = {image.digest: content for image, content in zip(IMAGES, CONTENTS, strict=True)}
PEER = "r.0"


class Spool:
    """The broker's spool, played by the test."""

    def __init__(self) -> None:
        self.hub = MemoryHub()
        self.links = only(self.hub, PEER)
        self.running = asyncio.create_task(self.links.run())

    async def asked(self) -> Fetch:
        _, fetch = await self.hub.receive()
        assert isinstance(fetch, Fetch)
        return fetch

    def answer(self, fetch: Fetch, contents: dict[bytes, bytes] = BY_DIGEST) -> None:
        payloads = [memoryview(contents.get(digest, b"")) for digest in fetch.images]
        self.hub.send(PEER, Fetched(fetch.request_id, payloads))

    async def aclose(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)


def play(scene: Callable[[Spool], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        spool = Spool()
        async with asyncio.timeout(10):
            await scene(spool)
        await spool.aclose()

    asyncio.run(main())


def test_concurrent_callers_share_one_fetch_and_later_ones_need_none() -> None:
    async def scene(spool: Spool) -> None:
        cache = ImageCache(spool.links)
        callers = [asyncio.create_task(cache.fetch(IMAGES[:2], 9)) for _ in range(8)]
        fetch = await spool.asked()
        assert fetch.images == [image.digest for image in IMAGES[:2]]
        assert fetch.refs == []
        spool.answer(fetch)
        assert await asyncio.gather(*callers) == [CONTENTS[:2]] * 8
        assert await cache.fetch([IMAGES[1], IMAGES[0], IMAGES[1]], 9) == [CONTENTS[1], CONTENTS[0], CONTENTS[1]]
        assert cache.num_fetched == 2

    play(scene)


def test_a_caller_that_leaves_does_not_end_the_fetch_of_the_others() -> None:
    async def scene(spool: Spool) -> None:
        cache = ImageCache(spool.links)
        leaving, staying = (asyncio.create_task(cache.fetch(IMAGES[:1], 9)) for _ in range(2))
        fetch = await spool.asked()
        leaving.cancel()
        await asyncio.wait([leaving])
        spool.answer(fetch)
        assert await staying == CONTENTS[:1]

    play(scene)


def test_the_picture_used_least_recently_is_forgotten_when_the_bytes_are_used_up() -> None:
    async def scene(spool: Spool) -> None:
        cache = ImageCache(spool.links, max_bytes=20)
        for place in (0, 1, 0, 2):
            fetching = asyncio.create_task(cache.fetch([IMAGES[place]], 9))
            if (place, cache.num_fetched) != (0, 2):
                spool.answer(await spool.asked())
            await fetching
        assert cache.num_fetched == 3
        assert await cache.fetch([IMAGES[0]], 9) == [CONTENTS[0]], "it was used again"
        fetching = asyncio.create_task(cache.fetch([IMAGES[1]], 9))
        spool.answer(await spool.asked())
        await fetching
        assert cache.num_fetched == 4

    play(scene)


def test_what_has_not_arrived_is_requested_over_the_links_of_the_next_session() -> None:
    async def scene(spool: Spool) -> None:
        cache = ImageCache()
        fetching = asyncio.create_task(cache.fetch(IMAGES[:1], 9))
        cache.connect(spool.links)
        await spool.asked()
        later = Spool()
        cache.connect(later.links)
        later.answer(await later.asked())
        assert await fetching == CONTENTS[:1]
        assert cache.num_fetched == 1
        await later.aclose()

    play(scene)


@pytest.mark.parametrize(
    ("found", "cause"), [({}, "is not among those of the run's prompts"), ({IMAGES[0].digest: b"x"}, "arrived damaged")]
)
def test_a_picture_that_is_missing_or_damaged_is_an_error_and_may_be_asked_for_again(
    found: dict[bytes, bytes], cause: str
) -> None:
    async def scene(spool: Spool) -> None:
        cache = ImageCache(spool.links)
        fetching = asyncio.create_task(cache.fetch(IMAGES[:1], 9))
        spool.answer(await spool.asked(), found)
        with pytest.raises(DecodeError, match=f"the picture {IMAGES[0].digest.hex()[:12]} {cause}"):
            await fetching
        again = asyncio.create_task(cache.fetch(IMAGES[:1], 9))
        spool.answer(await spool.asked())
        assert await again == CONTENTS[:1]

    play(scene)


def test_a_spool_that_was_given_up_has_lost_its_pictures() -> None:
    async def scene(spool: Spool) -> None:
        fetching = asyncio.create_task(ImageCache(spool.links).fetch(IMAGES[:1], 9))
        await spool.asked()
        spool.links.update(SpoolSet(lost=["spool"]))
        with pytest.raises(DecodeError, match="is lost: the broker's spool was away for too long"):
            await fetching

    play(scene)


def test_a_missing_answer_is_a_timeout() -> None:
    async def scene(spool: Spool) -> None:
        with pytest.raises(TimeoutError):
            await ImageCache(spool.links).fetch(IMAGES[:1], 0.0)

    play(scene)


def test_no_picture_needs_no_link() -> None:
    assert asyncio.run(ImageCache().fetch([], 9)) == []


# ── test payloads ─────────────────────────────────────────────────────────────────────────────
# A fetch returns the stored trajectory, or names the payload that cannot be read.

DEADLINE_S = 30.0
PEER_PAYLOADS = "trainer-0.1"


def trajectory(group_id: int) -> Trajectory:
    ids, logprobs = memoryview(bytes(8)), memoryview(bytes(8))
    return Trajectory(Unit(group_id, 0), ids, ids, logprobs, [Span(1, 0, 2)], "stop", f"text {group_id}")


def stored(group_id: int) -> tuple[SpoolRef, memoryview]:
    payload = msgspec.msgpack.encode(trajectory(group_id))
    return SpoolRef("s0", 1, group_id, len(payload), zlib.crc32(payload)), memoryview(payload)


STORED = dict(stored(group_id) for group_id in range(200))
REFS = list(STORED)


def payloads_play(scene: Callable[[MemoryHub, PayloadClient], Coroutine[Any, Any, None]]) -> None:
    """Run a scene with a running client; the test acts as its spool."""

    async def run() -> None:
        hub = MemoryHub()
        spools = only(hub, PEER_PAYLOADS, "s0")
        running = asyncio.create_task(spools.run())
        async with asyncio.timeout(DEADLINE_S):
            await scene(hub, PayloadClient(spools))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())


async def asked(hub: MemoryHub) -> Fetch:
    peer, message = await hub.receive()
    assert peer == PEER_PAYLOADS
    assert isinstance(message, Fetch)
    return message


def answer(hub: MemoryHub, fetch: Fetch) -> None:
    hub.send(PEER_PAYLOADS, Fetched(fetch.request_id, [STORED[ref] for ref in fetch.refs]))


def test_trajectories_are_returned_in_the_order_of_their_refs() -> None:
    async def scene(hub: MemoryHub, client: PayloadClient) -> None:
        fetching = asyncio.create_task(client.fetch_all(REFS, DEADLINE_S))
        requests: list[Fetch] = []
        while sum(len(fetch.refs) for fetch in requests) < len(REFS):
            requests.append(await asked(hub))
        assert [ref for fetch in requests for ref in fetch.refs] == REFS
        assert max(len(fetch.refs) for fetch in requests) == MAX_REFS
        for fetch in reversed(requests):
            answer(hub, fetch)
        assert await fetching == [trajectory(group_id) for group_id in range(len(REFS))]

    payloads_play(scene)


def test_no_request_asks_for_more_than_a_bounded_number_of_bytes() -> None:
    long = [SpoolRef("s0", 1, offset, CHUNK_BYTES // 3, 0) for offset in range(9)]
    huge = SpoolRef("s0", 1, 9, 4 * CHUNK_BYTES, 0)

    async def scene(hub: MemoryHub, client: PayloadClient) -> None:
        fetching = asyncio.create_task(client.fetch_all([*long, huge, *REFS[:2]], DEADLINE_S))
        requests = [await asked(hub) for _ in range(5)]
        assert [fetch.refs for fetch in requests] == [long[:3], long[3:6], long[6:], [huge], REFS[:2]]
        fetching.cancel()

    payloads_play(scene)


def test_requests_wait_while_too_many_bytes_have_not_arrived() -> None:
    size = MAX_REQUESTED_BYTES // 4
    refs = [SpoolRef("s0", 1, offset, size, 0) for offset in range(10)]

    async def scene(hub: MemoryHub, client: PayloadClient) -> None:
        fetching = [asyncio.create_task(client.fetch(ref, DEADLINE_S)) for ref in refs]
        requests = [await asked(hub) for _ in range(4)]
        late = asyncio.create_task(asked(hub))
        await asyncio.sleep(0)
        assert not late.done()
        for answered in range(len(refs) - 4):
            hub.send(PEER_PAYLOADS, Fetched(requests[answered].request_id, [memoryview(b"")]))
            requests.append(await late)
            late = asyncio.create_task(asked(hub))
        assert [ref for fetch in requests for ref in fetch.refs] == refs
        for task in (late, *fetching):
            task.cancel()
        await asyncio.gather(late, *fetching, return_exceptions=True)

    payloads_play(scene)


def test_concurrent_fetches_share_a_request() -> None:
    async def scene(hub: MemoryHub, client: PayloadClient) -> None:
        fetching = [asyncio.create_task(client.fetch(ref, DEADLINE_S)) for ref in REFS[:5]]
        fetch = await asked(hub)
        assert fetch.refs == REFS[:5]
        answer(hub, fetch)
        assert await asyncio.gather(*fetching) == [trajectory(group_id) for group_id in range(5)]

    payloads_play(scene)


def test_an_unreadable_payload_fails_no_other_fetch() -> None:
    async def scene(hub: MemoryHub, client: PayloadClient) -> None:
        gone, good = (asyncio.create_task(client.fetch(ref, DEADLINE_S)) for ref in REFS[:2])
        fetch = await asked(hub)
        hub.send(PEER_PAYLOADS, Fetched(fetch.request_id, [memoryview(b""), STORED[REFS[1]]]))
        assert await good == trajectory(1)
        with pytest.raises(DecodeError, match="no longer has the payload at s0, segment 1, offset 0"):
            await gone

    payloads_play(scene)


def test_a_missing_answer_is_a_timeout_of_payloads() -> None:
    async def scene(hub: MemoryHub, client: PayloadClient) -> None:
        with pytest.raises(TimeoutError):
            await client.fetch_all(REFS[:1], deadline_s=0.0)

    payloads_play(scene)


def test_an_answer_to_a_cancelled_fetch_is_ignored() -> None:
    async def scene(hub: MemoryHub, client: PayloadClient) -> None:
        impatient = asyncio.create_task(client.fetch(REFS[0], DEADLINE_S))
        fetch = await asked(hub)
        impatient.cancel()
        answer(hub, fetch)
        answer(hub, fetch)
        fetching = asyncio.create_task(client.fetch(REFS[1], DEADLINE_S))
        answer(hub, await asked(hub))
        assert await fetching == trajectory(1)

    payloads_play(scene)


def test_damaged_payloads_are_refused() -> None:
    ref, payload = stored(1)
    with pytest.raises(DecodeError, match="segment 1, offset 1 is lost: its spool was away"):
        read_trajectory(ref, None)
    damaged = memoryview(bytes(payload[:-1]) + b"?")
    with pytest.raises(DecodeError, match="segment 1, offset 1 is damaged: expected checksum 0x"):
        read_trajectory(ref, damaged)
    for content in (b"\xc1", msgspec.msgpack.encode([1]), b"\x91" * 100_000):
        with pytest.raises(DecodeError, match="is not a trajectory"):
            read_trajectory(SpoolRef("s0", 1, 1, len(content), zlib.crc32(content)), memoryview(content))


def test_the_arrays_of_a_trajectory_stay_views_into_its_payload() -> None:
    ref, payload = stored(1)
    assert read_trajectory(ref, payload).completion_ids.obj is payload.obj
