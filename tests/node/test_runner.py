"""An actor runs with heartbeats until it ends or the process is told to stop."""

import asyncio
import weakref

import pytest

from asyncrl.actor.memory import MemoryHub
from asyncrl.errors import EngineError, LinkReset
from asyncrl.messages import Beat, Bye
from asyncrl.node.runner import load_with_beats, serve

PEER = "r-0.1"


class FakeActor:
    """Runs until ``may_end`` is set."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.error: Exception | None = None

    async def run(self) -> None:
        await self.may_end.wait()
        if self.error:
            raise self.error

    def beat(self, lag_s: float) -> Beat:
        return Beat(lag_s, busy_s=4.0)


async def last(hub: MemoryHub) -> object:
    """The next message that is no beat."""
    while isinstance(message := (await hub.receive())[1], Beat):
        pass
    return message


def test_beats_come_from_the_actor_until_it_ends():
    async def main():
        hub, actor = MemoryHub(), FakeActor()
        link = hub.connect(PEER)
        serving = asyncio.create_task(serve(actor, link, beat_s=0.001, stopping=asyncio.Event()))
        for _ in range(3):
            _, beat = await hub.receive()
            assert isinstance(beat, Beat)
            assert beat.busy_s == 4.0
        actor.may_end.set()
        await serving
        assert await last(hub) == Bye("done")
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_a_stopped_node_drains_first():
    async def main():
        hub, actor, stopping, drained = MemoryHub(), FakeActor(), asyncio.Event(), asyncio.Event()
        link = hub.connect(PEER)
        serving = asyncio.create_task(serve(actor, link, beat_s=60, stopping=stopping, drain=drained.wait))
        stopping.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not serving.done()
        drained.set()
        await serving
        assert await last(hub) == Bye("told to stop")
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_an_actor_that_fails_sends_its_error_in_the_bye():
    async def main():
        hub, actor = MemoryHub(), FakeActor()
        actor.error = EngineError("out of memory")
        actor.may_end.set()
        with pytest.raises(EngineError, match="out of memory"):
            await serve(actor, hub.connect(PEER), beat_s=60, stopping=asyncio.Event())
        assert await last(hub) == Bye("EngineError: out of memory")

    asyncio.run(main())


def test_while_a_model_loads_beats_go_on():
    async def main():
        hub = MemoryHub()
        link = hub.connect(PEER)
        loop, beaten = asyncio.get_running_loop(), asyncio.Event()

        def load() -> str:
            asyncio.run_coroutine_threadsafe(beaten.wait(), loop).result(10)
            return "model"

        task = asyncio.create_task(load_with_beats(link, 0.001, load))
        assert isinstance((await hub.receive())[1], Beat)
        beaten.set()
        assert await task == "model"

    asyncio.run(main())


def test_an_unused_model_is_freed_before_the_next_one_loads():
    class Model:
        def __init__(self) -> None:
            self.itself = self

    async def main():
        link = MemoryHub().connect(PEER)
        before = weakref.ref(await load_with_beats(link, 60, Model))
        assert before() is not None, "it refers to itself: only the collector can let it go"
        await asyncio.sleep(0)  # Until here the loop holds what it has just given us.
        assert await load_with_beats(link, 60, lambda: before() is None)

    asyncio.run(main())


def test_a_load_that_fails_is_raised_and_beats_end():
    async def main():
        def load() -> None:
            raise LinkReset("no")

        with pytest.raises(LinkReset):
            await load_with_beats(MemoryHub().connect(PEER), 60, load)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
