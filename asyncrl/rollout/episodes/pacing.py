"""Adapts the number of active episodes of a node to the load of its engine, while the block runs."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from asyncrl.log import get_logger
from asyncrl.rollout.engine import MeasuredEngine
from asyncrl.rollout.episodes.concurrency import Concurrency
from asyncrl.rollout.episodes.episodes import Episodes

log = get_logger()

MEASURE_S = 2.0
"""Seconds between two measurements: a few decode steps of many requests, and a fraction of what is averaged over."""


def adapt(episodes: Episodes, engine: MeasuredEngine, concurrency: Concurrency, now_s: float) -> None:
    """Measure once, and change the number of seats, unless the engine cannot tell its load."""
    load, gate = engine.measure(), episodes.gate
    if load is None:
        return
    needed = episodes.num_active_tokens / load.kv_tokens if load.kv_tokens else 0.0
    limit = concurrency.observe(load, now_s, needed=needed, is_binding=gate.num_waiting > 0)
    if limit != gate.limit:
        log.debug("episodes.limit", limit=limit, before=gate.limit, kv_usage=load.kv_usage, needed=needed)
        gate.allow(limit)


@asynccontextmanager
async def paced(
    episodes: Episodes,
    engine: object,
    slots: int,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[None]:
    """Adapt while the block runs; an engine that cannot be measured leaves all episodes active."""
    if not isinstance(engine, MeasuredEngine) or engine.measure() is None:
        yield
        return
    concurrency = Concurrency(slots, episodes.gate.limit)
    episodes.gate.allow(concurrency.limit)

    async def follow() -> None:
        while True:
            await sleep(MEASURE_S)
            adapt(episodes, engine, concurrency, clock())

    following = asyncio.create_task(follow(), name="pacing of episodes")
    try:
        yield
    finally:
        following.cancel()
        await asyncio.wait([following])
