"""One fetch for each picture, however many callers and sessions."""

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from asyncrl.actor.memory import MemoryHub
from asyncrl.client.images import ImageCache
from asyncrl.errors import DecodeError
from asyncrl.messages.spool import Fetch, Fetched, SpoolSet
from asyncrl.messages.trajectory import Image
from tests.client.only_spool import only

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
