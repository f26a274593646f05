"""
Settings that only the broker's machine can resolve, so that all nodes read the same.

    paths                      made absolute: nodes have working directories of their own
    weights.backend = "auto"   one library, for the trainer and all rollouts
    run.epochs                 run.steps, by the rows of the dataset
"""

from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from asyncrl.config.checks.check import check
from asyncrl.config.config import Config
from asyncrl.errors import ConfigError

PATH_KEYS = ("path", "train", "held_out", "image_folders")
"""Settings that name files or model directories, in any section."""


LIBRARIES: dict[str, Literal["nccl", "hccl"]] = {"cuda": "nccl", "npu": "hccl"}
"""Collective library between devices of one kind; it refuses two ranks on one device."""


def with_backend(config: Config, *, shares_device: bool = False) -> Config:
    """
    The same configuration with ``weights.backend = "auto"`` replaced by the library that all members can use.

    Args:
        shares_device: The trainer and a rollout compute on one device.

    Raises:
        ConfigError: They do, and the backend is one that refuses it.
    """
    backend, kind = config.weights.backend, config.trainer.device
    shares_device = shares_device or config.rollout.colocated
    if shares_device and backend in LIBRARIES.values():
        raise ConfigError(
            f"weights.backend is {backend!r}, which needs a separate device for each end, but trainer and rollouts "
            f"share {kind} devices of this machine; use 'auto', 'shared' or 'gloo'"
        )
    if backend != "auto":
        return config
    if shares_device:
        return replace(config, weights=replace(config.weights, backend="shared"))
    wanted = config.rollout.wanted_device
    chosen = LIBRARIES.get(kind, "gloo") if (kind if wanted == "auto" else wanted) == kind else "gloo"
    return replace(config, weights=replace(config.weights, backend=chosen))


def with_steps(config: Config, num_rows: int) -> Config:
    """
    The same configuration with ``run.epochs`` replaced by the steps that take as many groups: floor(E rows / P).

    ``E`` counts as the decimal number that was written, so that 0.29 epochs of 100 rows are 29 groups.

    Raises:
        ConfigError: They are less than one step, or contradict another setting.
    """
    epochs, size = config.run.epochs, config.schedule.groups_per_step
    if epochs is None:
        return config
    steps = int(Fraction(str(epochs)) * num_rows / size)
    if not steps:
        raise ConfigError(
            f"run.epochs is {epochs:g} and data.train has {num_rows} rows: that is less than the {size} groups of one "
            f"step (schedule.groups_per_step); raise epochs, or lower groups_per_step"
        )
    resolved = replace(config, run=replace(config.run, steps=steps, epochs=None))
    check(resolved)
    return resolved


def with_absolute_paths(config: Config, base: Path) -> Config:
    """The same configuration with every relative path, ``file.py:name`` included, resolved against ``base``."""
    return msgspec.convert(_absolute(msgspec.to_builtins(config), base), Config)


def _absolute(value: Any, base: Path, key: str = "") -> Any:
    match value:
        case dict():
            return {name: _absolute(item, base, name) for name, item in value.items()}
        case list():
            return [_absolute(item, base, key) for item in value]
        case str() if value and (key in PATH_KEYS or ".py:" in value):
            return str(base / value)
        case _:
            return value
