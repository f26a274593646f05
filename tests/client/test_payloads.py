"""A fetch returns the stored trajectory, or names the payload that cannot be read."""

import asyncio
import zlib
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from asyncrl.actor.memory import MemoryHub
from asyncrl.client.payloads import MAX_REFS, PayloadClient, read_trajectory
from asyncrl.errors import DecodeError, LinkError, LinkReset
from asyncrl.messages import Fetch, Fetched, Span, SpoolRef, Trajectory, Unit

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


def play(scene: Callable[[MemoryHub, PayloadClient, "asyncio.Task[None]"], Coroutine[Any, Any, None]]) -> None:
    """Run a scene with a running client; the test acts as its spool."""

    async def run() -> None:
        hub = MemoryHub()
        client = PayloadClient(hub.connect(PEER))
        running = asyncio.create_task(client.run())
        async with asyncio.timeout(DEADLINE_S):
            await scene(hub, client, running)
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
    async def scene(hub: MemoryHub, client: PayloadClient, running: "asyncio.Task[None]") -> None:
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


def test_concurrent_fetches_share_a_request() -> None:
    async def scene(hub: MemoryHub, client: PayloadClient, running: "asyncio.Task[None]") -> None:
        fetching = [asyncio.create_task(client.fetch(ref)) for ref in REFS[:5]]
        fetch = await asked(hub)
        assert fetch.refs == REFS[:5]
        answer(hub, fetch)
        assert await asyncio.gather(*fetching) == [trajectory(group_id) for group_id in range(5)]

    play(scene)


def test_an_unreadable_payload_fails_no_other_fetch() -> None:
    async def scene(hub: MemoryHub, client: PayloadClient, running: "asyncio.Task[None]") -> None:
        gone, good = (asyncio.create_task(client.fetch(ref)) for ref in REFS[:2])
        fetch = await asked(hub)
        hub.send(PEER, Fetched(fetch.request_id, [memoryview(b""), STORED[REFS[1]]]))
        assert await good == trajectory(1)
        with pytest.raises(DecodeError, match="no longer has the payload at s0, segment 1, offset 0"):
            await gone

    play(scene)


def test_a_missing_answer_is_a_timeout() -> None:
    async def scene(hub: MemoryHub, client: PayloadClient, running: "asyncio.Task[None]") -> None:
        with pytest.raises(TimeoutError):
            await client.fetch_all(REFS[:1], deadline_s=0.0)

    play(scene)


def test_an_answer_to_a_cancelled_fetch_is_ignored() -> None:
    async def scene(hub: MemoryHub, client: PayloadClient, running: "asyncio.Task[None]") -> None:
        impatient = asyncio.create_task(client.fetch(REFS[0]))
        fetch = await asked(hub)
        impatient.cancel()
        answer(hub, fetch)
        answer(hub, fetch)
        fetching = asyncio.create_task(client.fetch(REFS[1]))
        answer(hub, await asked(hub))
        assert await fetching == trajectory(1)

    play(scene)


def test_a_restarted_or_closed_spool_ends_the_client() -> None:
    async def restarted(hub: MemoryHub, client: PayloadClient, running: "asyncio.Task[None]") -> None:
        hub.forget(PEER)
        with pytest.raises(LinkReset):
            await running

    async def gone(hub: MemoryHub, client: PayloadClient, running: "asyncio.Task[None]") -> None:
        await hub.aclose()
        with pytest.raises(LinkError, match="the link to the spool is closed"):
            await running

    play(restarted)
    play(gone)


def test_damaged_payloads_are_refused() -> None:
    ref, payload = stored(1)
    damaged = memoryview(bytes(payload[:-1]) + b"?")
    with pytest.raises(DecodeError, match="segment 1, offset 1 is damaged: expected checksum 0x"):
        read_trajectory(ref, damaged)
    for content in (b"\xc1", msgspec.msgpack.encode([1]), b"\x91" * 100_000):
        with pytest.raises(DecodeError, match="is not a trajectory"):
            read_trajectory(SpoolRef("s0", 1, 1, len(content), zlib.crc32(content)), memoryview(content))


def test_the_arrays_of_a_trajectory_stay_views_into_its_payload() -> None:
    ref, payload = stored(1)
    assert read_trajectory(ref, payload).completion_ids.obj is payload.obj
