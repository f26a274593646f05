"""The reward process: a pool of worker processes, and the actor that feeds it."""

import asyncio
from functools import partial

from asyncrl.actor.link import Link
from asyncrl.client.connection import Connection
from asyncrl.client.handshake import Identity, leave, spool_links
from asyncrl.client.run_address import RunAddress
from asyncrl.config.config import from_json
from asyncrl.errors import AsyncrlError
from asyncrl.messages.session import Welcome
from asyncrl.node.runner import join_steadily, named_here, run_sessions, serve, unless_told
from asyncrl.reward.actor import RewardActor
from asyncrl.reward.workers.pool import WorkerPool


async def run_reward(run: RunAddress, who: Identity, *, wait_s: float, stopping: asyncio.Event) -> None:
    """
    Score trajectories until the run is over or ``stopping`` is set. The workers outlive a restart of the broker.

    Raises:
        LinkError, ConfigError: The node could not start, or the broker is gone.
    """
    who, link, welcome = await unless_told(stopping, join_steadily(run, who, wait_s))
    pool = WorkerPool(from_json(welcome.config).reward)
    try:
        await pool.start()
    except AsyncrlError as error:
        await leave(link, str(named_here(error)))
        raise named_here(error) from error
    try:
        await run_sessions(
            partial(_serve, pool, run, stopping), who, link, welcome, run=run, wait_s=wait_s, stopping=stopping
        )
    finally:
        await pool.aclose()


async def _serve(  # noqa: PLR0917  the first three are bound
    pool: WorkerPool, run: RunAddress, stopping: asyncio.Event, who: Identity, link: Link, welcome: Welcome
) -> None:
    spools = spool_links(welcome.spools, who, run)
    actor = RewardActor(pool=pool, connection=Connection(who, link, spools), on_drain=stopping.set)
    await serve(actor, link, beat_s=welcome.beat_s, stopping=stopping)
