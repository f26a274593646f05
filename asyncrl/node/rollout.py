"""Builds a rollout's process: the engine that the configuration names, attached to the broker."""

import asyncio
import os

from asyncrl.actor.greeting import Identity, join, leave
from asyncrl.config import Config, from_json
from asyncrl.errors import AsyncrlError
from asyncrl.node.attach import roll_out
from asyncrl.node.devices import find, require
from asyncrl.node.serving import loading
from asyncrl.rollout.engine import Engine

# ruff: noqa: PLC0415  an engine that is not used need not be installed


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
        devices = find(config.rollout.device, os.environ)
        require(devices, config.rollout)
        os.environ.update(devices.environment())  # Before anything is loaded that looks at them.
        engine = await loading(link, welcome.beat_s, lambda: _engine(config))
    except AsyncrlError as error:
        await leave(link, str(error))
        raise
    try:
        await roll_out(engine, who, link, welcome, wait_s=wait_s, slots=config.rollout.slots, stopping=stopping)
    finally:
        await engine.aclose()


def _engine(config: Config) -> Engine:
    return _vllm(config) if config.rollout.engine == "vllm" else _transformers(config)


def _vllm(config: Config) -> Engine:
    from asyncrl.rollout.engines.vllm.engine import VllmEngine

    return VllmEngine.load(config)


def _transformers(config: Config) -> Engine:
    import torch
    from transformers.utils.logging import disable_progress_bar

    from asyncrl.rollout.engines.transformers import TransformersEngine

    torch.set_num_threads(config.rollout.threads)
    disable_progress_bar()  # a log is not a terminal
    return TransformersEngine.load(
        config.model.path,
        slots=config.rollout.slots,
        max_tokens_per_slot=config.longest_request,
        kv=config.rollout.kv,
        dtype=config.model.dtype,
    )
