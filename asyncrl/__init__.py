"""
The public interface of asyncrl. Names are imported on first use, so that ``import asyncrl`` loads no dependency.

    run(load_config("my.toml"))              a whole run, from a script or a notebook
    attach(engine, address, name, host)      a serving process becomes a rollout; `RolloutActor` is one level below
    attach_reward(grade, address, name)      a grading service becomes a reward node
    Host()                                   its users' requests, which go first, and the health of its rollout
    batches(address, model, tokenizer)       the trainer role for a training loop of your own
    Publisher(layout, member, send, config)  weight transfer from a model of your own
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncrl.config.config import Config as Config
    from asyncrl.engine import Completion as Completion
    from asyncrl.engine import Engine as Engine
    from asyncrl.engine import Request as Request
    from asyncrl.errors import AsyncrlError as AsyncrlError
    from asyncrl.messages.trajectory import Prompt as Prompt
    from asyncrl.messages.trajectory import Sampling as Sampling
    from asyncrl.messages.trajectory import Span as Span
    from asyncrl.reward.verifier import GroupMember as GroupMember
    from asyncrl.reward.verifier import VerifierInput as VerifierInput
    from asyncrl.rollout.actor import RolloutActor as RolloutActor
    from asyncrl.rollout.actor import RolloutOptions as RolloutOptions
    from asyncrl.rollout.engines.transformers.engine import TransformersEngine as TransformersEngine
    from asyncrl.rollout.engines.vllm.engine import VllmEngine as VllmEngine
    from asyncrl.runtime.attach import attach as attach
    from asyncrl.runtime.attach import attach_reward as attach_reward
    from asyncrl.runtime.batches import batches as batches
    from asyncrl.runtime.launch import run as run
    from asyncrl.runtime.rollout import Host as Host
    from asyncrl.runtime.rollout import RolloutHealth as RolloutHealth
    from asyncrl.tools.verl.names import load_config as load_config
    from asyncrl.trainer.packing.step import TrainingTrajectory as TrainingTrajectory
    from asyncrl.weights.publish import Publisher as Publisher
    from asyncrl.wire.handshake import Connection as Connection

_MODULES = {
    "AsyncrlError": "asyncrl.errors",
    "Completion": "asyncrl.engine",
    "Config": "asyncrl.config.config",
    "Connection": "asyncrl.wire.handshake",
    "Engine": "asyncrl.engine",
    "GroupMember": "asyncrl.reward.verifier",
    "Prompt": "asyncrl.messages.trajectory",
    "Sampling": "asyncrl.messages.trajectory",
    "Span": "asyncrl.messages.trajectory",
    "TrainingTrajectory": "asyncrl.trainer.packing.step",
    "TransformersEngine": "asyncrl.rollout.engines.transformers.engine",
    "VllmEngine": "asyncrl.rollout.engines.vllm.engine",
    "attach_reward": "asyncrl.runtime.attach",
    "Host": "asyncrl.runtime.rollout",
    "Publisher": "asyncrl.weights.publish",
    "Request": "asyncrl.engine",
    "RolloutActor": "asyncrl.rollout.actor",
    "RolloutHealth": "asyncrl.runtime.rollout",
    "RolloutOptions": "asyncrl.rollout.actor",
    "VerifierInput": "asyncrl.reward.verifier",
    "attach": "asyncrl.runtime.attach",
    "batches": "asyncrl.runtime.batches",
    "load_config": "asyncrl.tools.verl.names",
    "run": "asyncrl.runtime.launch",
}

__all__ = [*_MODULES]  # noqa: PLE0604  strings


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("asyncrl.version").VERSION
    if name not in _MODULES:
        raise AttributeError(f"module 'asyncrl' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES, "__version__"])
