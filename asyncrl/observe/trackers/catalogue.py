"""
Trackers by name: the built-in ones, and a user's own.

    "tensorboard" | "wandb" | "mlflow"        need the extra `tracking`
    "my.py:slack"                             a function that takes options and returns a `Tracker`
"""

import inspect
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from asyncrl.config.sections.broker import Trackers
from asyncrl.errors import ConfigError
from asyncrl.observe.trackers.mlflow import MLflow
from asyncrl.observe.trackers.tensorboard import TensorBoard
from asyncrl.observe.trackers.tracker import Tracker
from asyncrl.observe.trackers.wandb import WandB
from asyncrl.plug_in import hint, is_path, load_function

BUILT_IN: Mapping[str, Callable[..., Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}
"""Name to class; the name is also that of the package it needs."""


def check_trackers(trackers: Trackers) -> None:
    """Raise `ConfigError` if a tracker is unknown, not installed or named twice, or does not take its options."""
    labels = [label(name) for name in trackers.use]
    for name in trackers.use:
        if labels.count(label(name)) > 1:
            raise ConfigError(f"trackers.use names {label(name)!r} twice; list each tracker once")
        _factory(name, trackers.options.get(name, {}))
    for name in trackers.options.keys() - set(trackers.use):
        raise ConfigError(
            f"trackers.options.{name} has no effect: trackers.use does not name {name!r}; add it there, or remove "
            f"its options"
        )


def make_tracker(name: str, options: Mapping[str, Any]) -> Tracker:
    """Create a tracker without starting it. Raises as `check_trackers`."""
    return _factory(name, options)(**options)


def label(name: str) -> str:
    """Short name for a tracker's files and process: ``my.py:slack`` gives ``slack``."""
    return name.rpartition(":")[2]


def _factory(name: str, options: Mapping[str, Any]) -> Callable[..., Tracker]:
    factory = load_function(name, setting="trackers.use") if is_path(name) else _built_in(name)
    try:
        inspect.signature(factory).bind(**options)
    except TypeError as error:
        known = ", ".join(inspect.signature(factory).parameters) or "none"
        raise ConfigError(f"trackers.options of {name!r}: {error}; it takes {known}") from error
    if name in BUILT_IN:
        factory(**options)  # The constructors only check the values of their options.
    return factory


def _built_in(name: str) -> Callable[..., Tracker]:
    if name not in BUILT_IN:
        raise ConfigError(
            f"trackers.use names {name!r}: expected {', '.join(BUILT_IN)}, or file.py:name: {hint(name, BUILT_IN)}"
        )
    if find_spec(name) is None:
        raise ConfigError(f"trackers.use names {name!r}, which is not installed: pip install 'asyncrl[tracking]'")
    return BUILT_IN[name]
