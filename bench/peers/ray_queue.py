"""
Ray with a queue actor, modelled on the message queue of verl's fully asynchronous trainer.

    producer actor ─ 4 puts in flight ─▶ queue actor: a deque and a condition ◀─ one get at a time ─ consumer (driver)

The producer pickles each batch to bytes, and each call carries one batch. Two differences from verl favour Ray: a full
queue makes the producer wait instead of dropping the oldest item, and nothing is printed.
"""

import asyncio
import os
import time
from collections import deque
from functools import partial
from typing import Any

from meter import Meter, Rate
from payloads import batches, decode
from processes import Processes, report

NAME = "ray queue"
REQUIRES = "ray"
PUTS_IN_FLIGHT = 4
MAX_QUEUED = 1000
PATIENCE_S = 120.0


async def flow(processes: Processes, batch: int, seconds: float, *, gets: int = 1) -> Rate:
    """Trajectories per second through the queue actor."""
    consumer = await processes.start(__name__, "consume", batch, seconds, gets, str(processes.path))
    return await processes.result(consumer, Rate, seconds + PATIENCE_S)


eager_flow = partial(flow, gets=4)
"""`flow` with 4 concurrent gets, which verl's trainer does not use."""


async def round_trips(processes: Processes, seconds: float) -> list[float]:
    """Seconds of each call of an echo actor."""
    caller = await processes.start(__name__, "call", seconds, str(processes.path))
    return await processes.result(caller, list[float], seconds + PATIENCE_S)


class Queue:
    """The queue actor."""

    def __init__(self) -> None:
        self._items: deque[bytes] = deque()
        self._changed = asyncio.Condition()

    def pid(self) -> int:
        return os.getpid()

    async def put(self, item: bytes) -> bool:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._items) < MAX_QUEUED)
            self._items.append(item)
            self._changed.notify_all()
        return True

    async def get(self) -> tuple[bytes, int]:
        async with self._changed:
            await self._changed.wait_for(lambda: self._items)
            item = self._items.popleft()
            self._changed.notify_all()
            return item, len(self._items)


class Producer:
    """The producer actor, which puts batches endlessly."""

    async def run(self, queue: Any, batch: int) -> None:
        import ray

        items = batches(batch)

        async def put_all(turn: int) -> None:
            while True:
                await queue.put.remote(ray.cloudpickle.dumps(items[turn % len(items)]))
                turn += 1

        await asyncio.gather(*map(put_all, range(PUTS_IN_FLIGHT)))


class Echo:
    async def echo(self, body: bytes) -> bytes:
        return body


def consume(batch: str, seconds: str, gets: str, result: str) -> None:
    ray = _ray()
    queue = ray.remote(num_cpus=0, max_concurrency=20)(Queue).remote()
    meter = Meter(float(seconds), ray.get(queue.pid.remote()))
    producer = ray.remote(num_cpus=0)(Producer).remote()
    producer.run.remote(queue, int(batch))
    asked = deque(queue.get.remote() for _ in range(int(gets)))
    while meter.rate is None:
        pickled, _ = ray.get(asked.popleft())
        items = ray.cloudpickle.loads(pickled)
        for item in items:
            decode(item)
        meter.add(len(items), sum(map(len, items)))
        asked.append(queue.get.remote())
    report(result, meter.rate)
    ray.shutdown()


def call(seconds: str, result: str) -> None:
    ray = _ray()
    echo = ray.remote(num_cpus=0)(Echo).remote()
    took_s: list[float] = []
    ray.get(echo.echo.remote(bytes(100)))
    ends_s = time.perf_counter() + float(seconds)
    while (start_s := time.perf_counter()) < ends_s:
        ray.get(echo.echo.remote(bytes(100)))
        took_s.append(time.perf_counter() - start_s)
    report(result, took_s)
    ray.shutdown()


def _ray() -> Any:
    """Start a new local Ray instance on the loopback interface."""
    import ray

    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
        object_store_memory=512 << 20,
    )
    return ray


CHILDREN = {"consume": consume, "call": call}
