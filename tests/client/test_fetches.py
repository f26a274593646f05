"""Requests are answered once, over whatever link is there; `test_payloads` has the order and the bounds."""

import asyncio

import pytest

from asyncrl.actor.memory import MemoryHub
from asyncrl.client.fetches import FetchQueue
from asyncrl.errors import LinkError, LinkReset, SpoolAway
from asyncrl.messages.spool import Fetch, Fetched, SpoolRef
from asyncrl.messages.trajectory import Image

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
        queue.away(SpoolAway("the spool a is away"))
        assert not patient.done()
        with pytest.raises(SpoolAway):
            await hasty

    asyncio.run(scene())
