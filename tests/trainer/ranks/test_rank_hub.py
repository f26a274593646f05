"""The first rank welcomes the others, sends them work, and reports one that falls silent."""

import asyncio

import pytest

from asyncrl.errors import AsyncrlError, RankDied, TransferError
from asyncrl.files.checkpoints import FileEntry
from asyncrl.messages.session import Beat, Hello, Reject, Stop, StoreGet, StoreSet, StoreValue, Welcome
from asyncrl.messages.spool import SpoolSet
from asyncrl.messages.trainer import Checked, PartWritten, Refusal
from asyncrl.messages.trajectory import Unit
from asyncrl.messages.wire import PROTOCOL
from asyncrl.trainer.ranks.rank_hub import NoOtherRanks, RankHub, rank_store
from asyncrl.wire.link import Link
from asyncrl.wire.memory import MemoryHub

WELCOME = Welcome(1, "run", b"{}", SpoolSet(), 0.5)


class Stage:
    def __init__(self, size: int = 3) -> None:
        self.hub = MemoryHub()
        self.now_s = 0.0
        names = [f"trainer-0-rank-{rank}" for rank in range(1, size)]
        self.ranks = RankHub(self.hub, names=names, welcome=WELCOME, silence_s=10.0, clock=lambda: self.now_s)

    async def join(self, rank: int, host: str = "h") -> Link:
        link = self.hub.connect(f"trainer-0-rank-{rank}.abc")
        await link.send(Hello(PROTOCOL, "shard", f"trainer-0-rank-{rank}", "abc", host=host))
        return link


def test_ranks_are_welcomed_as_they_come_and_counted() -> None:
    async def scene() -> None:
        stage = Stage()
        listening = asyncio.create_task(stage.ranks.listen())
        first = await stage.join(1)
        assert await first.receive() == WELCOME
        with pytest.raises(RankDied, match=r"^trainer-0-rank-2 of the trainer's 2 further ranks did not join in 0 s"):
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


def test_a_step_is_checked_when_every_rank_has_said_what_it_refuses() -> None:
    async def scene() -> None:
        stage, refusals = Stage(), [Refusal(Unit(0, rank), "NaN") for rank in (0, 1)]
        listening = asyncio.create_task(stage.ranks.listen())
        links = [await stage.join(rank) for rank in (1, 2)]
        checking = asyncio.create_task(stage.ranks.refused(4))
        await links[0].send(Checked(5, []))
        await links[0].send(Checked(4, refusals[:1]))
        await stage.ranks.wait_for_all(5.0)
        assert not checking.done()
        await links[1].send(Checked(4, refusals[1:]))
        assert sorted(await checking, key=lambda refusal: refusal.unit) == refusals
        await links[1].send(Checked(5, []))
        assert await stage.ranks.refused(5) == []
        await links[0].send(Checked(6, []))
        await links[1].send(Checked(6, [], "rank 2: ValueError: not finite"))
        with pytest.raises(AsyncrlError, match="rank 2: ValueError: not finite"):
            await stage.ranks.refused(6)
        await stage.hub.aclose()
        await listening

    asyncio.run(scene())


def test_a_checkpoint_is_written_when_every_rank_has_written_its_part() -> None:
    async def scene() -> None:
        stage, files = Stage(), {f"model-{rank}": FileEntry(rank, "") for rank in (1, 2)}
        listening = asyncio.create_task(stage.ranks.listen())
        links = [await stage.join(rank) for rank in (1, 2)]
        writing = asyncio.create_task(stage.ranks.written(4))
        await links[0].send(PartWritten(4, {"model-1": files["model-1"]}))
        await stage.ranks.wait_for_all(5.0)
        assert not writing.done()
        await links[1].send(PartWritten(4, {"model-2": files["model-2"]}))
        assert await writing == files
        assert await NoOtherRanks().written(4) == {}
        await stage.hub.aclose()
        await listening

    asyncio.run(scene())


def test_a_rank_of_an_earlier_group_is_refused() -> None:
    async def scene() -> None:
        stage = Stage()
        listening = asyncio.create_task(stage.ranks.listen())
        assert await (await stage.join(3)).receive() == Reject("trainer-0-rank-3 is no rank of this trainer")
        await stage.hub.aclose()
        await listening

    asyncio.run(scene())


def test_a_first_rank_without_others_waits_for_nobody() -> None:
    async def scene() -> None:
        stage = Stage(size=1)
        await stage.ranks.wait_for_all(5.0)
        assert await stage.ranks.refused(0) == []

    asyncio.run(scene())


def test_stores_of_ranks_meet_in_any_order_and_count_as_no_rank() -> None:
    async def scene() -> None:
        stage = Stage(size=2)
        listening = asyncio.create_task(stage.ranks.listen())
        early, late = stage.hub.connect("trainer-0.1.store"), stage.hub.connect("trainer-0-rank-1.abc.store")
        await early.send(StoreGet("ranks", "here/1"))
        await late.send(StoreSet("ranks", "here/1", b"here"))
        assert await early.receive() == StoreValue("ranks", "here/1", b"here")
        await late.send(StoreGet("ranks", "here/1"))
        assert await late.receive() == StoreValue("ranks", "here/1", b"here")
        with pytest.raises(RankDied):
            await stage.ranks.wait_for_all(0.0)
        stage.now_s = 100.0
        stage.ranks.require_all()
        await stage.hub.aclose()
        await listening

    asyncio.run(scene())


def test_a_trainer_of_one_process_waits_for_nobody() -> None:
    assert asyncio.run(NoOtherRanks().refused(0)) == []


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
        with pytest.raises(RankDied, match=r"^trainer-0-rank-2 on h has been silent for 12 s"):
            stage.ranks.require_all()
        await stage.hub.aclose()
        await listening

    asyncio.run(scene())


# ── test rank store ───────────────────────────────────────────────────────────────────────────
# The stores of all ranks exchange values through the hub of the first rank, from threads that block.


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
