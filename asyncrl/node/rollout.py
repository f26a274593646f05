"""Builds a rollout's process: the engine that comes with asyncrl, attached to the broker."""

import asyncio

import structlog
import torch
from transformers.utils.logging import disable_progress_bar

from asyncrl.actor.greeting import Identity, identity, join, leave
from asyncrl.config import Config, from_json
from asyncrl.errors import AsyncrlError, LinkReset
from asyncrl.node.attach import roll_out
from asyncrl.node.serving import loading
from asyncrl.rollout.engines.transformers import TransformersEngine

log = structlog.get_logger()


async def run_rollout(address: str, who: Identity, *, wait_s: float, stopping: asyncio.Event) -> None:
    """
    Serve as a rollout until the run is over, or until ``stopping`` is set and what is in hand is done.

    If the broker starts again, the engine stays, and says Hello to the new one.

    Raises:
        LinkError, ConfigError: It could not start, or the broker is gone.
    """
    link, welcome = await join(address, who, wait_s)
    config = from_json(welcome.config)
    try:
        engine = await loading(link, welcome.beat_s, lambda: _engine(config))
    except AsyncrlError as error:
        await leave(link, str(error))
        raise
    try:
        while True:
            try:
                await roll_out(engine, who, link, welcome, slots=config.rollout.slots, stopping=stopping)
                return
            except LinkReset as reset:
                log.info("broker.restarted", cause=str(reset))
            who = identity("rollout", who.node)
            link, welcome = await join(address, who, wait_s)
    finally:
        await engine.aclose()


def _engine(config: Config) -> TransformersEngine:
    torch.set_num_threads(config.rollout.threads)
    disable_progress_bar()  # a log is not a terminal
    return TransformersEngine.load(
        config.model.path,
        slots=config.rollout.slots,
        max_tokens_per_slot=config.data.max_prompt_tokens + config.sampling.max_tokens,
        kv=config.rollout.kv,
        dtype=config.model.dtype,
    )
