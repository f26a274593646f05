"""Paths of a run file, made absolute on the broker's machine: nodes have working directories of their own."""

from pathlib import Path
from typing import Any

import msgspec

from asyncrl.config.sections import Config

PATH_KEYS = ("path", "train", "held_out")
"""Settings that name files or model directories, in any section."""


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
