"""
Files that a launch names, read where they are here: environments of Ray, files of variables, configurations of Hydra.

    --runtime-env=env.yaml                    ─▶ {"NCCL_DEBUG": "INFO"}
    --config-path=conf --config-name=mine     ─▶ conf/mine.yaml ─▶ {"data.train_batch_size": 256, ...}, and its defaults

A file is sought from the working directory, then from the script's folder.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from asyncrl.errors import ConfigError


def find(name: str, folders: Sequence[Path]) -> Path | None:
    """The file ``name`` in the first of ``folders`` that has it; None if none has."""
    return next((path for folder in folders if (path := folder / name).is_file()), None)


def variables_of(path: Path) -> dict[str, str]:
    """
    Variables of a file: ``env_vars`` of an environment of Ray in YAML or JSON, else lines of NAME=VALUE.

    Raises `ConfigError` if the file is neither.
    """
    if path.suffix in (".yaml", ".yml", ".json"):
        found = _read(path).get("env_vars") or {}
        if not isinstance(found, dict):
            raise ConfigError(f"{path}: env_vars is no table; write NAME: VALUE below it")
        return {str(name): str(value) for name, value in found.items()}
    lines = [line.strip().removeprefix("export ") for line in path.read_text("utf-8", "replace").splitlines()]
    pairs = [line.partition("=") for line in lines if "=" in line and not line.startswith("#")]
    return {name.strip(): value.strip().strip("'\"") for name, _, value in pairs}


class Configuration(Struct, frozen=True):
    """Options of a configuration of Hydra, without those that it computes from others."""

    options: dict[str, Any]
    bases: list[str]
    """Configurations that it is based on, the first one first."""


def configuration(path: Path) -> Configuration:
    """Read a configuration of Hydra. Raises `ConfigError` for any other file."""
    raw = _read(path)
    bases = [entry if isinstance(entry, str) else str(entry) for entry in raw.pop("defaults", None) or []]
    raw.pop("hydra", None)
    options = {key: value for key, value in _leaves(raw) if "${" not in str(value) and value not in (None, "???")}
    return Configuration(options, [base for base in bases if base != "_self_"])


def _leaves(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{above}{name}.")
        elif not str(name).startswith("_"):
            yield f"{above}{name}", value


def _read(path: Path) -> dict[str, Any]:
    try:
        import yaml  # comes with transformers, which the importer does not need
    except ImportError as error:
        raise ConfigError(f"reading {path} needs PyYAML: pip install pyyaml") from error
    try:
        found = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path} is no YAML: {str(error).partition(chr(10))[0]}; correct it") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} has no table at its top; correct it")
    return found
