"""The stores of all ranks exchange values through the hub of the first rank, from threads that block."""

import asyncio

import pytest

from asyncrl.actor.memory import MemoryHub
from asyncrl.errors import TransferError
from asyncrl.messages.session import Welcome
from asyncrl.messages.spool import SpoolSet
from asyncrl.trainer.ranks.rank_hub import RankHub
from asyncrl.trainer.ranks.rank_store import rank_store


def test_a_value_set_by_one_rank_is_got_by_the_other() -> None:
    async def scene() -> bytes:
        hub = MemoryHub()
        ranks = RankHub(hub, names=["b"], welcome=Welcome(1, "", b"", SpoolSet(), 1.0), silence_s=1.0)
        listening = asyncio.create_task(ranks.listen())
        async with (
            rank_store(hub.connect("a.store"), ["a", "b"], 10.0) as first,
            rank_store(hub.connect("b.store"), ["a", "b"], 10.0) as second,
        ):
            getting = asyncio.create_task(asyncio.to_thread(first.get, "here/1"))
            await asyncio.to_thread(second.set, "here/1", b"value")
            value = await getting
        await hub.aclose()
        await listening
        return value

    assert asyncio.run(scene()) == b"value"


def test_a_waiting_rank_ends_when_the_link_is_gone() -> None:
    async def scene() -> None:
        hub = MemoryHub()
        async with rank_store(hub.connect("a.store"), ["a", "b"], 10.0) as store:
            getting = asyncio.create_task(asyncio.to_thread(store.get, "here/1"))
            hub.forget("a.store")
            with pytest.raises(TransferError, match="the link to the first rank is gone"):
                await getting

    asyncio.run(scene())


def test_a_waiting_rank_ends_with_the_block() -> None:
    async def scene() -> None:
        hub = MemoryHub()
        async with rank_store(hub.connect("a.store"), ["a", "b"], 10.0) as store:
            getting = asyncio.create_task(asyncio.to_thread(store.get, "here/1"))
        with pytest.raises(TransferError, match="no longer needed"):
            await getting

    asyncio.run(scene())
