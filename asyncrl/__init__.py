"""
The public interface of asyncrl. Names are imported on first use, so that ``import asyncrl`` loads no dependency.

    run(load_config("my.toml"))              a whole run, from a script or a notebook
    attach(engine, address, name)            a serving process becomes a rollout; `RolloutActor` is one level below
    batches(address, model, tokenizer)       the trainer role for a training loop of your own
    Publisher(layout, member, send, config)  weight transfer from a model of your own
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncrl.cli.launch.run import run as run
    from asyncrl.client.connection import Connection as Connection
    from asyncrl.config.run_file import load_config as load_config
    from asyncrl.config.sections import Config as Config
    from asyncrl.errors import AsyncrlError as AsyncrlError
    from asyncrl.node.attach import attach as attach
    from asyncrl.node.batches import batches as batches
    from asyncrl.reward.verifier import VerifierInput as VerifierInput
    from asyncrl.rollout.actor import RolloutActor as RolloutActor
    from asyncrl.rollout.actor import RolloutOptions as RolloutOptions
    from asyncrl.rollout.engine import Completion as Completion
    from asyncrl.rollout.engine import Engine as Engine
    from asyncrl.rollout.engine import Request as Request
    from asyncrl.weights.publish import Publisher as Publisher

_EXPORTS = {
    "AsyncrlError": "asyncrl.errors:AsyncrlError",
    "Completion": "asyncrl.rollout.engine:Completion",
    "Config": "asyncrl.config.sections:Config",
    "Connection": "asyncrl.client.connection:Connection",
    "Engine": "asyncrl.rollout.engine:Engine",
    "Publisher": "asyncrl.weights.publish:Publisher",
    "Request": "asyncrl.rollout.engine:Request",
    "RolloutActor": "asyncrl.rollout.actor:RolloutActor",
    "RolloutOptions": "asyncrl.rollout.actor:RolloutOptions",
    "VerifierInput": "asyncrl.reward.verifier:VerifierInput",
    "attach": "asyncrl.node.attach:attach",
    "batches": "asyncrl.node.batches:batches",
    "load_config": "asyncrl.config.run_file:load_config",
    "run": "asyncrl.cli.launch.run:run",
}

__all__ = [*_EXPORTS]  # noqa: PLE0604  strings


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("asyncrl")
    if name not in _EXPORTS:
        raise AttributeError(f"module 'asyncrl' has no attribute {name!r}")
    module, _, attribute = _EXPORTS[name].partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS, "__version__"])
