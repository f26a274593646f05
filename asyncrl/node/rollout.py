"""Builds a rollout's process: the engine that the configuration names, attached to the broker."""

import asyncio
from functools import partial

from asyncrl.client.handshake import Identity, join, leave
from asyncrl.config.sections import from_json
from asyncrl.errors import AsyncrlError
from asyncrl.node.attach import roll_out
from asyncrl.node.engine import load_engine
from asyncrl.node.runner import loading


async def run_rollout(address: str, who: Identity, *, wait_s: float, stopping: asyncio.Event) -> None:
    """
    Serve as a rollout until the run is over, or until ``stopping`` is set and what is in hand was handed over.

    Raises:
        ConfigError: The engine is not installed, or needs more devices than this process may use.
        LinkError, EngineDied: It could not start, or the broker is gone.
    """
    link, welcome = await join(address, who, wait_s)
    config = from_json(welcome.config)
    try:
        engine = await loading(link, welcome.beat_s, partial(load_engine, config))
    except AsyncrlError as error:
        await leave(link, str(error))
        raise
    try:
        await roll_out(engine, who, link, welcome, wait_s=wait_s, slots=config.rollout.slots, stopping=stopping)
    finally:
        await engine.aclose()
