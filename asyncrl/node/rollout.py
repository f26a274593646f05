"""Builds a rollout's process: the engine that comes with asyncrl, attached to the broker."""

import asyncio

import torch
from transformers.utils.logging import disable_progress_bar

from asyncrl.actor.greeting import Identity, join, leave
from asyncrl.config import Config, from_json
from asyncrl.errors import AsyncrlError
from asyncrl.node.attach import roll_out
from asyncrl.node.serving import loading
from asyncrl.rollout.engines.transformers import TransformersEngine


async def run_rollout(address: str, who: Identity, *, wait_s: float, stopping: asyncio.Event) -> None:
    """
    Serve as a rollout until the run is over, or until ``stopping`` is set and what is in hand was handed over.

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
        await roll_out(engine, who, link, welcome, wait_s=wait_s, slots=config.rollout.slots, stopping=stopping)
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
