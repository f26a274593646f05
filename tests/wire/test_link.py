import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from asyncrl.errors import LinkClosed, LinkError, LinkReset
from asyncrl.messages.rollout import Offer
from asyncrl.messages.session import Bye, Stop
from asyncrl.messages.weights import WeightsList
from asyncrl.messages.wire import CODEC
from asyncrl.wire import link as link_module
from asyncrl.wire.link import (
    ITEM_OVERHEAD_BYTES,
    Hub,
    Inbox,
    Link,
    OtherCameFirst,
    PartialMessages,
    receive_answer,
    unless,
)
from asyncrl.wire.memory import MemoryHub
from asyncrl.wire.zmq_hub import ZmqHub
from asyncrl.wire.zmq_link import ZmqLink


def test_the_answer_is_of_the_kind_that_was_asked_for() -> None:
    async def scene() -> None:
        hub = MemoryHub()
        link = hub.connect("rollout-0.1")
        hub.send("rollout-0.1", WeightsList([]))
        assert await receive_answer(link, WeightsList) == WeightsList([])
        hub.send("rollout-0.1", Stop("now"))
        with pytest.raises(LinkError, match="the spool answered with Stop, expected WeightsList"):
            await receive_answer(link, WeightsList)

    asyncio.run(scene())


def test_a_spool_that_does_not_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "ANSWER_S", 0.01)
    link = MemoryHub().connect("rollout-0.1")
    with pytest.raises(LinkError, match=r"the spool did not answer within 0\.01 s"):
        asyncio.run(receive_answer(link, WeightsList))


# ── test inbox ────────────────────────────────────────────────────────────────────────────────
# `Inbox`: a queue with a limit in bytes, whose consumer lets other tasks run.


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
    monkeypatch.setattr("asyncrl.wire.link.TURN_S", 0.0)

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
    unfinished = PartialMessages(100)
    assert unfinished.note("a", 40) == []
    assert unfinished.note("b", 40) == []
    assert unfinished.note("a", 50) == []
    assert unfinished.note("c", 20) == ["b"]
    assert unfinished.note("a", 0) == []
    assert unfinished.note("c", 100) == []
    assert unfinished.note("d", 50) == ["c"]


def test_a_peer_that_exceeds_the_bound_alone_gives_way_itself() -> None:
    assert PartialMessages(100).note("a", 101) == ["a"]


# ── test link ─────────────────────────────────────────────────────────────────────────────────
# The contract of `Link` and `Hub`, tested in memory and over ZeroMQ.

DEADLINE_S = 30.0
"""Seconds after which a hanging test fails."""


class Place:
    """A hub and its links; the stack closes them at the end."""

    def __init__(self, kind: str, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.hub: Hub = MemoryHub() if kind == "memory" else ZmqHub("ipc://*", CODEC)
        stack.push_async_callback(self.hub.aclose)

    def connect(self, peer: str) -> Link:
        link: Link = (
            self.hub.connect(peer) if isinstance(self.hub, MemoryHub) else ZmqLink(self.hub.address, peer, CODEC)
        )
        self._stack.push_async_callback(link.aclose)
        return link

    async def connect_known(self, peer: str) -> Link:
        """Connect a link and send its first message, so that the hub knows the peer."""
        link = self.connect(peer)
        await link.send(Offer(0))
        assert await self.hub.receive() == (peer, Offer(0))
        return link


@asynccontextmanager
async def place(kind: str) -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack, asyncio.timeout(DEADLINE_S):
        yield Place(kind, stack)


@pytest.fixture(params=["memory", "zmq"])
def play(request: pytest.FixtureRequest) -> Callable[[Callable[[Place], Coroutine[Any, Any, None]]], None]:
    """Run a scene with an in-memory hub or with a ZeroMQ hub."""

    async def at_place(scene: Callable[[Place], Coroutine[Any, Any, None]]) -> None:
        async with place(request.param) as here:
            await scene(here)

    return lambda scene: asyncio.run(at_place(scene))


Play = Callable[[Callable[[Place], Coroutine[Any, Any, None]]], None]
NUM = 2000


def test_every_message_arrives_once_in_order_both_ways_at_once(play: Play) -> None:
    async def scene(here: Place) -> None:
        link = await here.connect_known("rollout-0.a")

        async def link_sends() -> None:
            for number in range(NUM):
                await link.send(Offer(number))

        async def hub_sends() -> None:
            for number in range(NUM):
                here.hub.send("rollout-0.a", Stop(str(number)))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(link_sends())
            tasks.create_task(hub_sends())
            at_hub = tasks.create_task(take(NUM, here.hub.receive))
            at_link = tasks.create_task(take(NUM, link.receive))
        assert at_hub.result() == [("rollout-0.a", Offer(number)) for number in range(NUM)]
        assert at_link.result() == [Stop(str(number)) for number in range(NUM)]

    play(scene)


def test_each_peer_receives_only_its_own_messages(play: Play) -> None:
    async def scene(here: Place) -> None:
        links = {peer: await here.connect_known(peer) for peer in ("a.1", "b.1", "c.1")}
        for peer in links:
            here.hub.send(peer, Stop(peer))
        assert {peer: await link.receive() for peer, link in links.items()} == {peer: Stop(peer) for peer in links}

    play(scene)


def test_a_restarted_node_is_a_new_peer(play: Play) -> None:
    async def scene(here: Place) -> None:
        former, latter = await here.connect_known("rollout-0.a"), await here.connect_known("rollout-0.b")
        here.hub.send("rollout-0.b", Stop("new"))
        assert await latter.receive() == Stop("new")
        here.hub.forget("rollout-0.a")
        with pytest.raises(LinkReset):
            await former.receive()
        await latter.send(Offer(1))
        assert await here.hub.receive() == ("rollout-0.b", Offer(1))

    play(scene)


def test_a_message_to_an_unknown_peer_is_ignored(play: Play) -> None:
    async def scene(here: Place) -> None:
        here.hub.send("nobody.1", Stop("?"))
        here.hub.forget("nobody.1")
        await here.connect_known("somebody.1")

    play(scene)


def test_a_forgotten_link_returns_received_messages_and_then_raises_link_reset(play: Play) -> None:
    async def scene(here: Place) -> None:
        link = await here.connect_known("a.1")
        here.hub.send("a.1", Stop("last words"))
        here.hub.forget("a.1")
        assert await link.receive() == Stop("last words")
        with pytest.raises(LinkReset):
            await link.receive()
        with pytest.raises(LinkReset):
            await link.send(Offer(1))
        with pytest.raises(LinkReset):
            async for _ in link:
                pass

    play(scene)


def test_a_closed_link_refuses_to_send_ends_iteration_and_may_be_closed_again(play: Play) -> None:
    async def scene(here: Place) -> None:
        link = await here.connect_known("a.1")
        await link.aclose()
        await link.aclose()
        with pytest.raises(LinkClosed):
            await link.send(Offer(1))
        with pytest.raises(LinkClosed):
            await link.receive()
        assert [message async for message in link] == []

    play(scene)


def test_closing_wakes_waiting_receivers(play: Play) -> None:
    async def scene(here: Place) -> None:
        link = await here.connect_known("a.1")
        at_hub = asyncio.create_task(here.hub.receive())
        at_link = asyncio.create_task(link.receive())
        await asyncio.sleep(0)
        await link.aclose()
        await here.hub.aclose()
        for waiting in (at_hub, at_link):
            with pytest.raises(LinkClosed):
                await waiting

    play(scene)


def test_messages_sent_before_closing_arrive(play: Play) -> None:
    async def scene(here: Place) -> None:
        link = await here.connect_known("a.1")
        for number in range(NUM):
            await link.send(Offer(number))
        await link.send(Bye("done"))
        closing = asyncio.create_task(link.aclose())
        expected = [("a.1", Offer(number)) for number in range(NUM)]
        assert await take(NUM, here.hub.receive) == expected
        assert await here.hub.receive() == ("a.1", Bye("done"))
        await closing

    play(scene)


def test_a_closed_hub_raises_link_closed(play: Play) -> None:
    async def scene(here: Place) -> None:
        await here.connect_known("a.1")
        await here.hub.aclose()
        await here.hub.aclose()
        with pytest.raises(LinkClosed):
            await here.hub.receive()
        here.hub.send("a.1", Stop("too late"))
        here.hub.forget("a.1")

    play(scene)


async def take(count: int, receive: Callable[[], Coroutine[Any, Any, Any]]) -> list[Any]:
    return [await receive() for _ in range(count)]


# ── test waiting ──────────────────────────────────────────────────────────────────────────────


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
