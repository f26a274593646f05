"""
Architecture of a model directory: its config.json with ``model.overrides`` in it, as transformers reads both.

    config.json ─┐
                 ├─ read_config ─▶ PreTrainedConfig ─▶ trainer, built-in engine, checks
    overrides ───┘
                    config_changes ─▶ what differs from config.json alone ─▶ vLLM's ``hf_overrides``

Trainer and engines must read the same architecture, or they would compute different models from the same weights.
"""

import difflib
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, GenerationConfig, PreTrainedConfig

from asyncrl.config.model import weights
from asyncrl.config.model.directory import PARAMETERS, ROPE, merged, refuse_beyond, scaled_positions
from asyncrl.errors import ConfigError
from asyncrl.plug_in import describe

NONE: Mapping[str, Any] = {}
SETTING = "model.overrides"
GENERATION = "generation_config.json"
MOST, SLACK = 16, 1 << 24
"""Most values of a model for one in its files, where eight may be packed into an integer, and values beside those."""


def read_config(path: Path, overrides: Mapping[str, Any] = NONE) -> PreTrainedConfig:
    """
    The config of a model directory, with overrides.

    Raises:
        ConfigError: The model has no such key, or an override has an invalid value or no effect.
        Exception: Whatever transformers raises for a config.json that it cannot read.
    """
    plain: PreTrainedConfig = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    if not overrides:
        return plain
    raw = weights.read_config(path)
    # Keys that a config.json of this architecture may have, with their values, in the same nesting.
    known: dict[str, Any] = dict.fromkeys((*getattr(plain, "attribute_map", {}), *ROPE))
    _refuse_unknown(overrides, {**known, **raw, **plain.to_dict()}, path)
    changed = merged(raw, overrides)
    try:
        config: PreTrainedConfig = type(plain).from_dict(changed)
    except Exception as error:  # transformers may raise anything for a wrong value
        raise ConfigError(f"{SETTING} is not valid for {path}: {describe(error, __file__)}") from error
    config.name_or_path = plain.name_or_path
    _refuse_unread(changed, raw, config.to_dict(), path)
    return config


def set_generation_config(model: Any, path: Path, overrides: Mapping[str, Any] = NONE) -> None:
    """
    Give a model the generation config of its directory; without one, the ends that its config.json names, overridden.

    transformers takes those from one of two tables, depending on how a model is made. Raises as `read_config`.
    """
    if not model.can_generate():
        return
    if (path / GENERATION).is_file():
        model.generation_config = GenerationConfig.from_pretrained(path, local_files_only=True)
        return
    changed = merged(weights.read_config(path), overrides)
    for table in (_table(changed.get("text_config")), changed):
        if (ends := table.get("eos_token_id")) is not None:
            model.generation_config.eos_token_id = ends


class NotMade(ConfigError):
    """transformers reads a config.json, and makes no model by it."""


def on_meta(kind: Any, config: PreTrainedConfig, source: str, **options: Any) -> Any:
    """
    A transformers model without memory for weights or buffers.

    Args:
        kind: Auto class of transformers.
        source: Name of the model, for messages.
        options: Further arguments of ``from_config``.

    Raises:
        NotMade: transformers makes no model by this config.
    """
    try:
        with torch.device("meta"):
            return kind.from_config(config, **options)
    except Exception as error:  # a wrong value in config.json may raise anything
        raise NotMade(
            f"{source}: no model can be made by its config.json: {describe(error, __file__)}; copy the model directory "
            f"again"
        ) from error


def require_held(model: Any, shapes: weights.Shapes, source: str) -> None:
    """Raise `ConfigError` for a model from `on_meta` with far more values than files with weights of these shapes."""
    asked = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    held = sum(map(prod, shapes.values()))
    if asked > MOST * held + SLACK:
        raise ConfigError(
            f"{source}: a model by its config.json has {asked:,} values, but its safetensors hold {held:,}; use config "
            f"and weights of one model"
        )


def num_positions(config: Any) -> int | None:
    """Longest sequence that a language model knows, with its scaled rotary embeddings; None if it has no limit."""
    return scaled_positions(getattr(config, "max_position_embeddings", None), getattr(config, PARAMETERS, None) or {})


def check_positions(config: Any, positions: int) -> None:
    """Raise `ConfigError` unless the language model knows ``positions``, those of prompt and completion together."""
    refuse_beyond(num_positions(config), positions)


def config_changes(path: Path, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the config that overrides change, by transformers' own keys. Raises as `read_config`."""
    return _differing(read_config(path).to_dict(), read_config(path, overrides).to_dict())


def _refuse_unknown(overrides: Mapping[str, Any], known: Mapping[str, Any], path: Path, where: str = "") -> None:
    for key, value in overrides.items():
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            inner = next((f"{table}.{key}" for table, part in known.items() if key in _table(part)), "")
            meant = inner or (f"{where}{close[0]}" if close else "")
            hint = f"did you mean {meant!r}?" if meant else "see its config.json"
            raise ConfigError(f"{SETTING}.{where}{key}: the model {path} has no such setting; {hint}")
        if isinstance(value, Mapping) and key not in ROPE and _table(known[key]):
            _refuse_unknown(value, {**_table(known[key]), **dict.fromkeys(ROPE)}, path, f"{where}{key}.")


def _refuse_unread(changed: Mapping[str, Any], raw: Mapping[str, Any], read: Mapping[str, Any], path: Path) -> None:
    """Raise `ConfigError` for a changed value that transformers has replaced by one of its own."""
    got = dict(_leaves(read))
    for key, value in _leaves(_differing(raw, changed)):
        if key in got and got[key] != value:
            raise ConfigError(
                f"{SETTING}.{key} is {value!r}, but transformers reads {got[key]!r} from the config of {path}: another "
                f"setting decides it; remove the override"
            )


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of ``after`` that differ from ``before``; a nested config has only its own differences."""
    found = {}
    for key, value in after.items():
        if key in before and before[key] == value:
            continue
        is_config = key not in ROPE and isinstance(value, dict) and isinstance(before.get(key), dict)
        found[key] = _differing(before[key], value) if is_config else value
    return found


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _leaves(values: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", value
