"""`Inbox`: a queue with a limit in bytes, whose consumer lets other tasks run."""

import asyncio

import pytest

from asyncrl.actor.inbox import ITEM_OVERHEAD_BYTES, Inbox, Unfinished
from asyncrl.errors import LinkClosed, LinkReset


def test_get_returns_queued_items_in_order_and_then_raises_the_error() -> None:
    async def scene() -> None:
        inbox = Inbox[str](100)
        inbox.put("first", 1)
        inbox.put("second", 1)
        inbox.fail(LinkReset("gone"))
        assert [await inbox.get(), await inbox.get()] == ["first", "second"]
        for _ in range(2):
            with pytest.raises(LinkReset, match="gone"):
                await inbox.get()

    asyncio.run(scene())


def test_only_the_first_error_is_raised() -> None:
    async def scene() -> None:
        inbox = Inbox[str](100)
        inbox.fail(LinkReset("first"))
        inbox.fail(LinkClosed("second"))
        with pytest.raises(LinkReset, match="first"):
            await inbox.get()

    asyncio.run(scene())


def test_an_inbox_is_full_by_bytes_and_has_room_after_a_get() -> None:
    async def scene() -> None:
        inbox = Inbox[str](10 + 2 * ITEM_OVERHEAD_BYTES)
        inbox.put("a", 6)
        before = inbox.is_full
        inbox.put("b", 4)
        assert (before, inbox.is_full) == (False, True)
        await inbox.get()
        assert not inbox.is_full

    asyncio.run(scene())


def test_tiny_items_fill_an_inbox_too() -> None:
    inbox = Inbox[str](100 * ITEM_OVERHEAD_BYTES)
    for _ in range(100):
        inbox.put("", 0)
    assert inbox.is_full


def test_a_waiting_consumer_is_woken_by_an_item_and_by_an_error() -> None:
    async def scene() -> None:
        inbox = Inbox[str](10)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(inbox.get())
            await asyncio.sleep(0)
            inbox.put("late", 1)
        assert waiting.result() == "late"

        waiting = asyncio.create_task(inbox.get())
        await asyncio.sleep(0)
        inbox.fail(LinkClosed("done"))
        with pytest.raises(LinkClosed):
            await waiting

    asyncio.run(scene())


def test_a_cancelled_consumer_loses_no_item() -> None:
    async def scene() -> None:
        inbox = Inbox[str](10)
        waiting = asyncio.create_task(inbox.get())
        await asyncio.sleep(0)
        inbox.put("kept", 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await inbox.get() == "kept"

    asyncio.run(scene())


def test_a_consumer_that_never_waits_lets_other_tasks_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrl.actor.inbox.TURN_S", 0.0)

    async def scene() -> None:
        inbox = Inbox[int](1 << 30)
        turns = 0

        async def ticker() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(ticker())
        for number in range(100):
            inbox.put(number, 1)
        for number in range(100):
            assert await inbox.get() == number
        ticking.cancel()
        assert turns >= 99

    asyncio.run(scene())


def test_unfinished_bytes_of_all_peers_are_bounded_and_the_silent_give_way() -> None:
    unfinished = Unfinished(100)
    assert unfinished.note("a", 40) == []
    assert unfinished.note("b", 40) == []
    assert unfinished.note("a", 50) == []
    assert unfinished.note("c", 20) == ["b"]
    assert unfinished.note("a", 0) == []
    assert unfinished.note("c", 100) == []
    assert unfinished.note("d", 50) == ["c"]


def test_a_peer_that_exceeds_the_bound_alone_gives_way_itself() -> None:
    assert Unfinished(100).note("a", 101) == ["a"]
