"""The engine that a configuration names, on the devices this process may use."""

import os

from asyncrl.config.sections import Config
from asyncrl.node.machine.devices import find, require
from asyncrl.rollout.engine import Engine

# ruff: noqa: PLC0415  an engine that is not used need not be installed


def load_engine(config: Config) -> Engine:
    """
    Load the model of ``config.model``. Takes seconds; any thread may call it, once in the life of a process.

    Raises:
        ConfigError: The engine is not installed, needs more devices than this process may use, or cannot run the model.
        EngineDied: It did not start.
    """
    devices = find(config.rollout.device, os.environ)
    require(devices, config.rollout)
    os.environ.update(devices.environment())  # Before anything is loaded that looks at them.
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
        chat_template_kwargs=config.data.chat_template_kwargs,
    )
