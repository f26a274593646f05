"""`VirtualLoop` jumps to the next timer, and a `Process` can be frozen, resumed and killed at any time."""

import asyncio
from random import Random

import pytest

from tests.simulation.virtual_time import Process, Stuck, VirtualLoop


def test_time_jumps_to_the_next_timer() -> None:
    loop = VirtualLoop(Random(0))
    seen: list[float] = []

    async def sleep_for_years() -> None:
        for seconds in (1e7, 0.5):
            await asyncio.sleep(seconds)
            seen.append(loop.time())

    loop.run_until_complete(sleep_for_years())
    loop.close()

    assert seen == [1e7, 1e7 + 0.5]


def test_a_loop_without_pending_work_raises_stuck() -> None:
    loop = VirtualLoop(Random(0))
    never = loop.create_future()

    with pytest.raises(Stuck, match="nothing is left to do"):
        loop.run_until_complete(never)
    loop.close()


def test_work_of_a_thread_pool_is_done_in_order_and_takes_time() -> None:
    loop = VirtualLoop(Random(0))
    done: list[tuple[str, float]] = []

    async def give_work() -> None:
        thread = object()
        work = [loop.run_in_executor(thread, lambda name=name: done.append((name, loop.time()))) for name in "abc"]
        await asyncio.gather(*work)

    loop.run_until_complete(give_work())
    loop.close()

    assert [name for name, _ in done] == ["a", "b", "c"]
    assert 0 < done[0][1] < done[1][1] < done[2][1]


def test_a_frozen_process_catches_up_after_thawing() -> None:
    loop = VirtualLoop(Random(0))
    seen: list[float] = []
    process = Process(loop, "a")

    async def tick() -> None:
        while True:
            await asyncio.sleep(1.0)
            seen.append(loop.time())

    async def watch() -> None:
        process.start(tick())
        await asyncio.sleep(1.5)
        process.freeze()
        await asyncio.sleep(4.0)
        process.thaw()
        await asyncio.sleep(1.2)
        process.kill()
        await asyncio.wait([process.task])

    loop.run_until_complete(watch())
    loop.close()

    assert seen == [1.0, 5.5, 6.5]
    assert not process.is_alive
