import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from asyncrl.observe.dashboard.changes import HEARTBEAT, MAX_SUBSCRIBERS, Changes
from asyncrl.observe.dashboard.query import Refused

Scene = Callable[[Changes, list[dict[str, Any]], "Clock"], Awaitable[None]]


class Clock:
    """`sleep` returns at `tick`."""

    def __init__(self) -> None:
        self._ticked = asyncio.Event()
        self.asleep = asyncio.Event()

    async def sleep(self, _: float) -> None:
        self._ticked.clear()
        self.asleep.set()
        await self._ticked.wait()

    async def tick(self) -> None:
        await self.asleep.wait()
        self.asleep.clear()
        self._ticked.set()


def play(scene: Scene, heartbeat_s: float = 10.0) -> None:
    async def main() -> None:
        runs: list[dict[str, Any]] = [{"revision": 1}]

        async def look() -> list[dict[str, Any]]:
            return [dict(run) for run in runs]

        clock = Clock()
        changes = Changes(look, heartbeat_s=heartbeat_s, sleep=clock.sleep)
        async with asyncio.timeout(20):
            await scene(changes, runs, clock)

    asyncio.run(main())


def test_an_event_comes_at_once_and_then_at_each_change() -> None:
    async def scene(changes: Changes, runs: list[dict[str, Any]], clock: Clock) -> None:
        stream = changes.stream()
        assert await anext(stream) == b'data: {"runs":[{"revision":1}]}\n\n'
        coming = asyncio.ensure_future(anext(stream))
        await clock.tick()  # nothing has changed
        await clock.asleep.wait()
        assert not coming.done()
        runs[0]["revision"] = 2
        await clock.tick()
        assert await coming == b'data: {"runs":[{"revision":2}]}\n\n'
        await stream.aclose()

    play(scene)


def test_nothing_is_polled_once_nobody_listens() -> None:
    async def scene(changes: Changes, runs: list[dict[str, Any]], clock: Clock) -> None:
        streams = [changes.stream(), changes.stream()]
        for stream in streams:
            await anext(stream)
        await clock.asleep.wait()
        tasks = {task for task in asyncio.all_tasks() if task.get_name() == "dashboard changes"}
        assert (len(tasks), changes.num_subscribers) == (1, 2)
        for stream in streams:
            await stream.aclose()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert changes.num_subscribers == 0
        assert all(task.cancelled() for task in tasks)

    play(scene)


def test_a_quiet_stream_has_heartbeats() -> None:
    async def scene(changes: Changes, runs: list[dict[str, Any]], clock: Clock) -> None:
        stream = changes.stream()
        await anext(stream)
        assert await anext(stream) == HEARTBEAT
        await stream.aclose()

    play(scene, heartbeat_s=0.001)


def test_subscribers_are_limited() -> None:
    async def scene(changes: Changes, runs: list[dict[str, Any]], clock: Clock) -> None:
        streams = [changes.stream() for _ in range(MAX_SUBSCRIBERS)]
        for stream in streams:
            changes.check_room()
            await anext(stream)
        with pytest.raises(Refused, match="32 pages are open already") as refused:
            changes.check_room()
        assert refused.value.status == 503
        for stream in streams:
            await stream.aclose()

    play(scene)


def test_a_change_that_a_new_page_sees_first_is_told_to_those_that_were_open() -> None:
    async def scene(changes: Changes, runs: list[dict[str, Any]], clock: Clock) -> None:
        first, second = changes.stream(), changes.stream()
        await anext(first)
        coming = asyncio.ensure_future(anext(first))
        await clock.asleep.wait()
        runs[0]["revision"] = 2
        assert await anext(second) == b'data: {"runs":[{"revision":2}]}\n\n'
        assert await coming == b'data: {"runs":[{"revision":2}]}\n\n'
        for stream in (first, second):
            await stream.aclose()

    play(scene)
