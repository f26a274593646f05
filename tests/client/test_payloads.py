"""A fetch returns the stored trajectory, or names the payload that cannot be read."""

import asyncio
import zlib
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from asyncrl.actor.memory import MemoryHub
from asyncrl.client.chunks import CHUNK_BYTES
from asyncrl.client.fetches import MAX_REFS, MAX_REQUESTED_BYTES
from asyncrl.client.payloads import PayloadClient, read_trajectory
from asyncrl.errors import DecodeError
from asyncrl.messages.spool import Fetch, Fetched, SpoolRef
from asyncrl.messages.trajectory import Span, Trajectory, Unit
from tests.client.only_spool import only

DEADLINE_S = 30.0
PEER = "trainer-0.1"


def trajectory(group_id: int) -> Trajectory:
    ids, logprobs = memoryview(bytes(8)), memoryview(bytes(8))
    return Trajectory(Unit(group_id, 0), ids, ids, logprobs, [Span(1, 0, 2)], "stop", f"text {group_id}")


def stored(group_id: int) -> tuple[SpoolRef, memoryview]:
    payload = msgspec.msgpack.encode(trajectory(group_id))
    return SpoolRef("s0", 1, group_id, len(payload), zlib.crc32(payload)), memoryview(payload)


STORED = dict(stored(group_id) for group_id in range(200))
REFS = list(STORED)


def play(scene: Callable[[MemoryHub, PayloadClient], Coroutine[Any, Any, None]]) -> None:
    """Run a scene with a running client; the test acts as its spool."""

    async def run() -> None:
        hub = MemoryHub()
        spools = only(hub, PEER, "s0")
        running = asyncio.create_task(spools.run())
        async with asyncio.timeout(DEADLINE_S):
            await scene(hub, PayloadClient(spools))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())


async def asked(hub: MemoryHub) -> Fetch:
    peer, message = await hub.receive()
    assert peer == PEER
    assert isinstance(message, Fetch)
    return message


def answer(hub: MemoryHub, fetch: Fetch) -> None:
    hub.send(PEER, Fetched(fetch.request_id, [STORED[ref] for ref in fetch.refs]))


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

    play(scene)


def test_no_request_asks_for_more_than_a_bounded_number_of_bytes() -> None:
    long = [SpoolRef("s0", 1, offset, CHUNK_BYTES // 3, 0) for offset in range(9)]
    huge = SpoolRef("s0", 1, 9, 4 * CHUNK_BYTES, 0)

    async def scene(hub: MemoryHub, client: PayloadClient) -> None:
        fetching = asyncio.create_task(client.fetch_all([*long, huge, *REFS[:2]], DEADLINE_S))
        requests = [await asked(hub) for _ in range(5)]
        assert [fetch.refs for fetch in requests] == [long[:3], long[3:6], long[6:], [huge], REFS[:2]]
        fetching.cancel()

    play(scene)


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
            hub.send(PEER, Fetched(requests[answered].request_id, [memoryview(b"")]))
            requests.append(await late)
            late = asyncio.create_task(asked(hub))
        assert [ref for fetch in requests for ref in fetch.refs] == refs
        for task in (late, *fetching):
            task.cancel()
        await asyncio.gather(late, *fetching, return_exceptions=True)

    play(scene)


def test_concurrent_fetches_share_a_request() -> None:
    async def scene(hub: MemoryHub, client: PayloadClient) -> None:
        fetching = [asyncio.create_task(client.fetch(ref, DEADLINE_S)) for ref in REFS[:5]]
        fetch = await asked(hub)
        assert fetch.refs == REFS[:5]
        answer(hub, fetch)
        assert await asyncio.gather(*fetching) == [trajectory(group_id) for group_id in range(5)]

    play(scene)


def test_an_unreadable_payload_fails_no_other_fetch() -> None:
    async def scene(hub: MemoryHub, client: PayloadClient) -> None:
        gone, good = (asyncio.create_task(client.fetch(ref, DEADLINE_S)) for ref in REFS[:2])
        fetch = await asked(hub)
        hub.send(PEER, Fetched(fetch.request_id, [memoryview(b""), STORED[REFS[1]]]))
        assert await good == trajectory(1)
        with pytest.raises(DecodeError, match="no longer has the payload at s0, segment 1, offset 0"):
            await gone

    play(scene)


def test_a_missing_answer_is_a_timeout() -> None:
    async def scene(hub: MemoryHub, client: PayloadClient) -> None:
        with pytest.raises(TimeoutError):
            await client.fetch_all(REFS[:1], deadline_s=0.0)

    play(scene)


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

    play(scene)


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
