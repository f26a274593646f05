"""Loads the configured rollout engine on the devices of this process."""

import os

from asyncrl.config.config import Config
from asyncrl.node.machine.devices import find, require
from asyncrl.rollout.engine import Engine
from asyncrl.weights.groups.device import device_name

# ruff: noqa: PLC0415  only the configured engine must be installed


def load_engine(config: Config) -> Engine:
    """
    Load ``config.model`` into the engine. Takes seconds; may be called on any thread, once per process.

    Raises:
        ConfigError: The engine is not installed, needs more devices than this process may use, or cannot run the model.
        EngineDied: The engine did not start.
    """
    devices = find(config.rollout.wanted_device, os.environ)
    require(devices, config.rollout)
    os.environ.update(devices.environment())  # must precede the import of libraries that read these variables
    match config.rollout.engine:
        case "vllm":
            return _vllm(config)
        case "transformers":
            return _transformers(config, device_name(devices.kind))


def _vllm(config: Config) -> Engine:
    from asyncrl.rollout.engines.vllm.engine import VllmEngine

    return VllmEngine.load(config)


def _transformers(config: Config, device: str) -> Engine:
    import torch
    from transformers.utils.logging import disable_progress_bar

    from asyncrl.rollout.engines.transformers.engine import TransformersEngine

    torch.set_num_threads(config.rollout.threads)
    disable_progress_bar()  # a log is not a terminal
    return TransformersEngine.load(
        config.model.path,
        slots=config.rollout.slots,
        max_tokens_per_slot=config.longest_request,
        kv=config.rollout.kv,
        replay_routes=config.rollout.replay_routes,
        dtype=config.model.dtype,
        device=device,
        overrides=config.model.overrides,
        chat_template_kwargs=config.data.chat_template_kwargs,
        split_special_tokens=config.data.split_special_tokens,
    )
