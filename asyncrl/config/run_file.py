"""
Reads a run file: defaults < TOML file < ``--set a.b=value``, checked and returned as a `Config`.

`explain` gives the origin of each value.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct, structs
from msgspec.structs import replace

from asyncrl.config.checks.check import check
from asyncrl.config.config import Config, leaves
from asyncrl.config.correction import resolved
from asyncrl.config.meanings import meaning_of, value_in_words
from asyncrl.config.toml import MAX_SHOWN, convert, put, read, split_override
from asyncrl.errors import ConfigError
from asyncrl.files.json_lines import toml_key, toml_value
from asyncrl.foreign_text import shown


class Origin(Struct, frozen=True):
    """A value and its source."""

    key: str
    value: Any
    source: str
    """
    ``default``, the name of the file, ``--set``, ``preset`` for a value set by a correction preset, or ``run.epochs``
    for the steps that follow from it.
    """


Overrides = str | Sequence["str | Sequence[str]"]
"""Texts ``section.key=value``: one, several, or a list of them among several."""


def load_config(path: str | os.PathLike[str], overrides: Overrides = ()) -> Config:
    """
    Read and check a run file.

    Args:
        overrides: ``"section.key=value"``, or several; the value is TOML, and text that is not TOML is a string.

    Raises:
        ConfigError: The file cannot be read, or `decode` refuses it.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(
            f"expected the path of a run file, got {type(path).__name__} {path!r:.60}: write the settings to a TOML "
            f"file, or give them after its path, as 'run.steps=20'"
        )
    return decode(read_raw(Path(path), overrides))


def read_raw(path: Path, overrides: Overrides = ()) -> dict[str, Any]:
    """Read a run file with ``overrides`` as a nested dict, unchecked; raises `ConfigError` if it is not TOML."""
    raw = read(path, "config file")
    for override in list(_texts(overrides, path)):  # all are looked at before one is applied
        override_one(raw, override)
    return raw


def _texts(overrides: object, path: Path) -> Iterator[str]:
    if isinstance(overrides, str):
        yield overrides
    elif isinstance(overrides, Sequence):
        for each in overrides:
            yield from _texts(each, path)
    else:
        raise ConfigError(
            f"overrides of {path} have {overrides!r}: expected texts such as 'run.steps=20', one or a list of them"
        )


def overridden(raw: dict[str, Any], overrides: Sequence[str]) -> Config:
    """Apply every ``--set`` to a nested dict, and convert it. Raises as `load_config`."""
    for override in overrides:
        override_one(raw, override)
    return decode(raw)


def override_one(raw: dict[str, Any], override: str) -> None:
    """Apply one ``--set``; a length of the run replaces the other one of the file. Raises as `load_config`."""
    key, value = split_override(override, SHORTHANDS)
    put(raw, key, value, where=f"--set {shown(override, MAX_SHOWN)}")
    if key in LENGTHS:
        for other in LENGTHS - {key}:
            raw["run"].pop(other.removeprefix("run."), None)


def decode(raw: dict[str, Any]) -> Config:
    """
    Convert a nested dict to a `Config` and check it.

    Raises:
        ConfigError: A key is unknown or missing, a value has the wrong type or range, or values contradict each other.
    """
    config = convert(raw, Config, "; `asyncrl init` writes a run file that has it")
    if {"steps", "epochs"} <= raw.get("run", {}).keys():
        raise ConfigError(
            f"run.steps is {config.run.steps} and run.epochs is {config.run.epochs:g}: both say how long to train; "
            f"remove one"
        )
    check(config)
    return config


def explain(
    path: Path, overrides: Sequence[str] = (), resolve_steps: Callable[[Config], Config] = lambda config: config
) -> list[Origin]:
    """Every effective value, with its source; ``resolve_steps`` turns ``run.epochs`` into steps."""
    config = load_config(path, overrides)
    given = dict(leaves(msgspec.to_builtins(config)))
    in_file = dict(leaves(read(path, "config file")))
    in_set = {split_override(override, SHORTHANDS)[0] for override in overrides}
    has_epochs = config.run.epochs is not None
    steps = resolve_steps(config).run.steps
    applied = _without_preset(structs.replace(config, run=structs.replace(config.run, steps=steps)))

    def source(key: str, value: Any) -> str:
        if has_epochs and key == "run.steps":
            return "run.epochs"
        if value != given[key]:
            return "preset"
        if any(key == k or key.startswith(k + ".") for k in in_set):
            return "--set"
        if any(key == k or key.startswith(k + ".") or k.startswith(key + ".") for k in in_file):
            return path.name
        return "default"

    return [Origin(key, value, source(key, value)) for key, value in leaves(msgspec.to_builtins(applied))]


def changes(config: Config) -> list[str]:
    """Line ``key = value`` for each setting without its default value, in the order of a run file."""
    return [
        f"{key} = {value_in_words(value)}"
        for key, value in leaves(msgspec.to_builtins(config))
        if not (known := meaning_of(key)) or known.is_required or value != msgspec.to_builtins(known.default)
    ]


def to_toml(config: Config) -> str:
    """TOML text of a config, as stored in the run directory; `load_config` reads it back to an equal config."""
    lines: list[str] = []
    values = msgspec.to_builtins(config)
    if config.run.epochs is not None:
        del values["run"]["steps"]
    _write_table(values, (), lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def _without_preset(config: Config) -> Config:
    """Config whose correction has the preset's settings filled in and keeps the preset's name."""
    correction = config.algorithm.correction
    applied = structs.replace(resolved(correction), preset=correction.preset)
    return structs.replace(config, algorithm=structs.replace(config.algorithm, correction=applied))


SHORTHANDS = {"seed": "run.seed", "steps": "run.steps", "name": "run.name", "staleness": "schedule.staleness"}
"""Short forms of frequent keys, for ``--set`` only."""
LENGTHS = {"run.steps", "run.epochs"}
"""Settings of which exactly one gives the length of the run."""


def _write_table(table: dict[str, Any], where: tuple[str, ...], lines: list[str]) -> None:
    values = {k: v for k, v in table.items() if v is not None and not isinstance(v, dict)}  # TOML has no null.
    if where and (values or not table):
        lines.append(f"\n[{'.'.join(map(toml_key, where))}]")
    lines.extend(f"{toml_key(key)} = {toml_value(value)}" for key, value in values.items())
    for key, value in table.items():
        if isinstance(value, dict):
            _write_table(value, (*where, key), lines)


# ── resolve ───────────────────────────────────────────────────────────────────────────────────
# Settings that only the broker's machine can resolve, so that all nodes read the same.
#
#     paths                      made absolute: nodes have working directories of their own
#     weights.backend = "auto"   one library, for the trainer and all rollouts
#     run.epochs                 run.steps, by the rows of the dataset

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
