import asyncio

import pytest

from asyncrl.actor.waiting import OtherCameFirst, unless


def test_the_result_is_that_of_what_is_awaited() -> None:
    async def scene() -> None:
        event = asyncio.Event()
        assert await unless(event.wait(), asyncio.sleep(0, "done")) == "done"

    asyncio.run(scene())


def test_an_error_is_raised_as_it_is() -> None:
    async def fail() -> None:
        raise KeyError("missing")

    async def scene() -> None:
        with pytest.raises(KeyError, match="missing"):
            await unless(asyncio.Event().wait(), fail())
        with pytest.raises(KeyError, match="missing"):
            await unless(fail(), asyncio.Event().wait())

    asyncio.run(scene())


def test_what_comes_second_is_cancelled() -> None:
    async def scene() -> None:
        over, was_cancelled = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            try:
                over.set()
                await asyncio.Event().wait()
            finally:
                was_cancelled.set()

        with pytest.raises(OtherCameFirst):
            await unless(over.wait(), work())
        assert was_cancelled.is_set()

    asyncio.run(scene())
