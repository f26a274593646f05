"""The first rank welcomes the others, sends them work, and reports one that falls silent."""

import asyncio

import pytest

from asyncrl.actor.link import Link
from asyncrl.actor.memory import MemoryHub
from asyncrl.errors import RankDied
from asyncrl.messages import PROTOCOL, Beat, Hello, Stop, Welcome
from asyncrl.trainer.ranks.rank_hub import RankHub

WELCOME = Welcome(1, "run", b"{}", "tcp://spool", 0.5)


class Stage:
    def __init__(self, size: int = 3) -> None:
        self.hub = MemoryHub()
        self.now_s = 0.0
        self.ranks = RankHub(self.hub, size=size, welcome=WELCOME, silence_s=10.0, clock=lambda: self.now_s)

    async def join(self, rank: int) -> Link:
        link = self.hub.connect(f"trainer-0-rank-{rank}.abc")
        await link.send(Hello(PROTOCOL, "shard", f"trainer-0-rank-{rank}", "abc"))
        return link


def test_ranks_are_welcomed_as_they_come_and_counted() -> None:
    async def scene() -> None:
        stage = Stage()
        listening = asyncio.create_task(stage.ranks.listen())
        first = await stage.join(1)
        assert await first.receive() == WELCOME
        with pytest.raises(RankDied, match="1 of the trainer's 2 further ranks joined in 0 s"):
            await stage.ranks.wait_for_all(0.0)
        await stage.join(2)
        await stage.ranks.wait_for_all(5.0)
        await stage.hub.aclose()
        await listening

    asyncio.run(scene())


def test_a_broadcast_reaches_all_ranks() -> None:
    async def scene() -> None:
        stage = Stage()
        listening = asyncio.create_task(stage.ranks.listen())
        links = [await stage.join(rank) for rank in (1, 2)]
        await stage.ranks.wait_for_all(5.0)
        stage.ranks.broadcast(Stop("over"))
        for link in links:
            assert [await link.receive() for _ in range(2)] == [WELCOME, Stop("over")]
        await stage.hub.aclose()
        await listening

    asyncio.run(scene())


def test_a_rank_that_falls_silent_is_named() -> None:
    async def scene() -> None:
        stage = Stage()
        listening = asyncio.create_task(stage.ranks.listen())
        links = [await stage.join(rank) for rank in (1, 2)]
        await stage.ranks.wait_for_all(5.0)
        stage.now_s = 8.0
        await links[0].send(Beat())
        while stage.ranks._heard_s["trainer-0-rank-1.abc"] < 8.0:
            await asyncio.sleep(0)
        stage.ranks.require_all()
        stage.now_s = 12.0
        with pytest.raises(RankDied, match="trainer-0-rank-2 has been silent for 12 s"):
            stage.ranks.require_all()
        await stage.hub.aclose()
        await listening

    asyncio.run(scene())
