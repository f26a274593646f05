"""Builds a reward process: the pool of killable workers, and the actor that feeds it."""

import asyncio

from asyncrl.actor.greeting import Identity, join, leave, spool_link
from asyncrl.config import from_json
from asyncrl.errors import AsyncrlError
from asyncrl.node.serving import serve
from asyncrl.reward.actor import RewardActor
from asyncrl.reward.pool import WorkerPool


async def run_reward(address: str, who: Identity, *, wait_s: float, stopping: asyncio.Event) -> None:
    """
    Serve as a reward node until the run is over or ``stopping`` is set.

    Raises:
        LinkError, ConfigError: It could not start, or the broker is gone.
    """
    link, welcome = await join(address, who, wait_s)
    reward = from_json(welcome.config).reward
    pool = WorkerPool(reward.function, reward.options, workers=reward.workers, timeout_s=reward.timeout_s)
    try:
        await pool.start()
    except AsyncrlError as error:
        await leave(link, str(error))
        raise
    spool = spool_link(welcome, who)
    try:
        await serve(RewardActor(pool=pool, link=link, spool=spool), link, beat_s=welcome.beat_s, stopping=stopping)
    finally:
        await pool.aclose()
        await spool.aclose()
