"""A rollout's process: the configured engine, attached to the broker."""

import asyncio
from functools import partial

from asyncrl.client.handshake import Identity, join
from asyncrl.config.sections import from_json
from asyncrl.node.attach import roll_out
from asyncrl.node.engine import load_engine
from asyncrl.node.runner import load_with_beats


async def run_rollout(address: str, who: Identity, *, wait_s: float, stopping: asyncio.Event) -> None:
    """
    Generate trajectories until the run is over, or until ``stopping`` is set and the rollout has drained.

    Raises:
        ConfigError: The engine is not installed, or needs more devices than this process may use.
        LinkError, EngineDied: The rollout could not start, or the broker is gone.
    """
    link, welcome = await join(address, who, wait_s)
    config = from_json(welcome.config)
    engine = await load_with_beats(link, welcome.beat_s, partial(load_engine, config))
    try:
        await roll_out(engine, who, link, welcome, wait_s=wait_s, slots=config.rollout.slots, stopping=stopping)
    finally:
        await engine.aclose()
