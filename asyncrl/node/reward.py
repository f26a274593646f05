"""The reward process: a pool of worker processes, and the actor that feeds it."""

import asyncio
from functools import partial

from asyncrl.actor.link import Link
from asyncrl.client.connection import Connection
from asyncrl.client.handshake import Identity, join, leave, spool_link
from asyncrl.config.sections import from_json
from asyncrl.errors import AsyncrlError
from asyncrl.messages import Welcome
from asyncrl.node.runner import run_sessions, serve
from asyncrl.reward.actor import RewardActor
from asyncrl.reward.workers.pool import WorkerPool


async def run_reward(address: str, who: Identity, *, wait_s: float, stopping: asyncio.Event) -> None:
    """
    Score trajectories until the run is over or ``stopping`` is set. The workers outlive a restart of the broker.

    Raises:
        LinkError, ConfigError: The node could not start, or the broker is gone.
    """
    link, welcome = await join(address, who, wait_s)
    pool = WorkerPool(from_json(welcome.config).reward)
    try:
        await pool.start()
    except AsyncrlError as error:
        await leave(link, str(error))
        raise
    try:
        await run_sessions(partial(_serve, pool, stopping), who, link, welcome, wait_s)
    finally:
        await pool.aclose()


async def _serve(pool: WorkerPool, stopping: asyncio.Event, who: Identity, link: Link, welcome: Welcome) -> None:
    spool = spool_link(welcome, who)
    try:
        actor = RewardActor(pool=pool, connection=Connection(who, link, spool), on_drain=stopping.set)
        await serve(actor, link, beat_s=welcome.beat_s, stopping=stopping)
    finally:
        await spool.aclose()
