"""Builds a reward process: the pool of killable workers, and the actor that feeds it."""

import asyncio
from functools import partial

from asyncrl.actor.link import Link
from asyncrl.client.handshake import Identity, join, leave, spool_link
from asyncrl.config.sections import from_json
from asyncrl.errors import AsyncrlError
from asyncrl.messages import Welcome
from asyncrl.node.runner import serve, through_restarts
from asyncrl.reward.actor import RewardActor
from asyncrl.reward.workers.pool import WorkerPool


async def run_reward(address: str, who: Identity, *, wait_s: float, stopping: asyncio.Event) -> None:
    """
    Serve as a reward node until the run is over or ``stopping`` is set.

    If the broker starts again, the workers stay, and the node says Hello to the new one.

    Raises:
        LinkError, ConfigError: It could not start, or the broker is gone.
    """
    link, welcome = await join(address, who, wait_s)
    pool = WorkerPool(from_json(welcome.config).reward)
    try:
        await pool.start()
    except AsyncrlError as error:
        await leave(link, str(error))
        raise
    try:
        await through_restarts(partial(_serve, pool, stopping), who, link, welcome, wait_s)
    finally:
        await pool.aclose()


async def _serve(pool: WorkerPool, stopping: asyncio.Event, who: Identity, link: Link, welcome: Welcome) -> None:
    """One session with a broker and its spool."""
    spool = spool_link(welcome, who)
    try:
        actor = RewardActor(pool=pool, link=link, spool=spool, on_drain=stopping.set)
        await serve(actor, link, beat_s=welcome.beat_s, stopping=stopping)
    finally:
        await spool.aclose()
