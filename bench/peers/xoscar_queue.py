"""
xoscar with a queue actor: three processes of one actor pool.

    producer actor ─ 4 puts in flight ─▶ queue actor: a deque under a condition ◀─ 4 gets in flight ─ consumer
"""

import asyncio
import os
import time
from collections import deque
from typing import Any

import xoscar
from meter import Meter, Rate
from payloads import batches, decode
from processes import Processes, free_address, report

NAME = "xoscar"
REQUIRES = "xoscar"
IN_FLIGHT = 4
MAX_QUEUED = 1000
PATIENCE_S = 60.0


async def flow(processes: Processes, batch: int, seconds: float) -> Rate:
    """Trajectories per second through the queue actor."""
    consumer = await processes.start(__name__, "consume", batch, seconds, str(processes.path))
    return await processes.result(consumer, Rate, seconds + PATIENCE_S)


async def round_trips(processes: Processes, seconds: float) -> list[float]:
    """Seconds of each echo call to the queue actor."""
    caller = await processes.start(__name__, "call", seconds, str(processes.path))
    return await processes.result(caller, list[float], seconds + PATIENCE_S)


class Queue(xoscar.StatelessActor):  # type: ignore[misc]
    """The queue actor. A `StatelessActor`, because an `Actor` would hold its lock while a get waits."""

    def __init__(self) -> None:
        self._items: deque[list[bytes]] = deque()
        self._changed = asyncio.Condition()

    def pid(self) -> int:
        return os.getpid()

    async def put(self, item: list[bytes]) -> bool:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._items) < MAX_QUEUED)
            self._items.append(item)
            self._changed.notify_all()
        return True

    async def get(self) -> list[bytes]:
        async with self._changed:
            await self._changed.wait_for(lambda: self._items)
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def echo(self, body: bytes) -> bytes:
        return body


class Producer(xoscar.Actor):  # type: ignore[misc]
    """The producer actor, which puts batches endlessly."""

    async def run(self, queue: Any, batch: int) -> None:
        items = batches(batch)

        async def put_all(turn: int) -> None:
            while True:
                await queue.put(items[turn % len(items)])
                turn += 1

        self._puts = [asyncio.create_task(put_all(turn)) for turn in range(IN_FLIGHT)]


def consume(batch: str, seconds: str, result: str) -> None:
    asyncio.run(_consume(int(batch), float(seconds), result))


async def _consume(batch: int, seconds: float, result: str) -> None:
    pool, queue = await _pool()
    meter = Meter(seconds, await queue.pid())
    producer = await xoscar.create_actor(
        Producer,
        address=pool.external_address,
        uid="producer",
        allocate_strategy=xoscar.allocate_strategy.ProcessIndex(2),
    )
    await producer.run(queue, batch)

    async def get_all() -> None:
        while meter.rate is None:
            items = await queue.get()
            for item in items:
                decode(item)
            meter.add(len(items), sum(map(len, items)))

    await asyncio.wait([asyncio.create_task(get_all()) for _ in range(IN_FLIGHT)], return_when=asyncio.FIRST_COMPLETED)
    report(result, meter.rate)
    await pool.stop()
    os._exit(0)  # A normal exit would wait for the pending gets.


def call(seconds: str, result: str) -> None:
    asyncio.run(_call(float(seconds), result))


async def _call(seconds: float, result: str) -> None:
    pool, queue = await _pool()
    took_s: list[float] = []
    ends_s = time.perf_counter() + seconds
    while (start_s := time.perf_counter()) < ends_s:
        await queue.echo(bytes(100))
        took_s.append(time.perf_counter() - start_s)
    report(result, took_s)
    await pool.stop()


async def _pool() -> tuple[Any, Any]:
    """Create a pool of this process and two more, and a queue actor in the first of those two."""
    pool = await xoscar.create_actor_pool(free_address().removeprefix("tcp://"), n_process=2)
    queue = await xoscar.create_actor(
        Queue, address=pool.external_address, uid="queue", allocate_strategy=xoscar.allocate_strategy.ProcessIndex(1)
    )
    return pool, queue


CHILDREN = {"consume": consume, "call": call}
