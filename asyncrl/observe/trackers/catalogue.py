"""
Trackers by name: those that come with asyncrl, and a person's own.

    "tensorboard" | "wandb" | "mlflow"        installed by the extra `tracking`
    "my.py:slack"                             a function of options that returns a `Tracker`
"""

import inspect
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from asyncrl.config.sections import Trackers
from asyncrl.errors import ConfigError
from asyncrl.observe.trackers.mlflow import MLflow
from asyncrl.observe.trackers.tensorboard import TensorBoard
from asyncrl.observe.trackers.tracker import Tracker
from asyncrl.observe.trackers.wandb import WandB
from asyncrl.plug_in import hint, is_path, load_function

BUILT_IN: Mapping[str, Callable[..., Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}
"""By name, which is that of the package each needs."""


def check_trackers(trackers: Trackers) -> None:
    """
    Refuse what would only fail once the run goes on.

    Raises:
        ConfigError: A tracker is unknown, not installed or named twice, or does not take its options.
    """
    labels = [label(name) for name in trackers.use]
    for name in trackers.use:
        if labels.count(label(name)) > 1:
            raise ConfigError(f"trackers.use names {label(name)!r} twice; each writes one record of the run")
        _factory(name, trackers.options.get(name, {}))
    for name in trackers.options.keys() - set(trackers.use):
        raise ConfigError(f"trackers.options.{name} is only read if trackers.use names it; add or remove it")


def make_tracker(name: str, options: Mapping[str, Any]) -> Tracker:
    """
    Not yet started.

    Raises:
        ConfigError: As `check_trackers`.
    """
    return _factory(name, options)(**options)


def label(name: str) -> str:
    """What files and processes are called that belong to a tracker: ``my.py:slack`` is ``slack``."""
    return name.rpartition(":")[2]


def _factory(name: str, options: Mapping[str, Any]) -> Callable[..., Tracker]:
    factory = load_function(name, setting="trackers.use") if is_path(name) else _built_in(name)
    try:
        inspect.signature(factory).bind(**options)
    except TypeError as error:
        known = ", ".join(inspect.signature(factory).parameters) or "none"
        raise ConfigError(f"trackers.options of {name!r}: {error}; it takes {known}") from error
    if name in BUILT_IN:
        factory(**options)  # Looks at what the options are, and at nothing else.
    return factory


def _built_in(name: str) -> Callable[..., Tracker]:
    if name not in BUILT_IN:
        raise ConfigError(
            f"trackers.use names {name!r}, expected {', '.join(BUILT_IN)}, or file.py:name: {hint(name, BUILT_IN)}"
        )
    if find_spec(name) is None:
        raise ConfigError(f"trackers.use names {name!r}, which is not installed: pip install 'asyncrl[tracking]'")
    return BUILT_IN[name]
