"""A model directory, checked before anything starts and again where it is loaded: by its small files and headers."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any

from msgspec import Struct

from asyncrl.config.model import adapter
from asyncrl.config.model.tokenizer import check_tokenizer
from asyncrl.config.model.weights import CONFIG, check_sizes, check_weights, read_config, vocabulary
from asyncrl.errors import ConfigError
from asyncrl.similar_path import did_you_mean

NONE: Mapping[str, Any] = MappingProxyType({})


def check_model(path: str, overrides: Mapping[str, Any] = NONE, *, setting: str = "model.path") -> None:
    """
    Raise `ConfigError` unless ``path`` is a directory with a model and its tokenizer; it may say how to get a model.

    Reads no tensor. ``overrides`` are ``model.overrides``, ``setting`` is the key of the path, for messages.
    """
    model = require_directory(path, setting)
    shapes = check_weights(model, setting)
    check_sizes(merged(read_config(model), overrides), shapes, "model.overrides")
    check_tokenizer(model, setting, vocabulary(shapes))


def require_directory(path: str, setting: str) -> Path:
    """The path of a model directory; raises `ConfigError` if there is no config.json in it."""
    model = Path(path)
    if _is_model(model):
        return model
    if (model / adapter.CONFIG).is_file():
        raise ConfigError(
            f"{setting} {path!r} is a LoRA adapter, not a whole model: give the run directory that it is from, or the "
            f"directory that `asyncrl export RUN -o DIR` writes without --adapter"
        )
    meant = did_you_mean(model, _is_model)
    if path == f"models/{model.name}":
        raise ConfigError(
            f"{setting} {path!r} is not a model directory (no {CONFIG} in it): download the model into it, "
            f"hf download OWNER/{model.name} --local-dir {path}, or give the directory of another{meant}"
        )
    owner, *name = path.split("/")
    if len(name) == 1 and owner.strip(".~") and not Path(owner).is_dir():  # a name of the Hub, and no local folder
        raise ConfigError(
            f"{setting} {path!r} is not a local directory; to use a model of the Hugging Face Hub, download it "
            f"first, hf download {path} --local-dir models/{model.name}, and give that directory"
        )
    remedy = ": give one, or make a toy model with `asyncrl toy step-sums DIR` or `asyncrl toy random DIR --text FILE`"
    raise ConfigError(f"{setting} {path!r} is not a model directory (no {CONFIG} in it){meant or remedy}")


def _is_model(path: Path) -> bool:
    return (path / CONFIG).exists()


# ── overrides ─────────────────────────────────────────────────────────────────────────────────
# ``model.overrides``: values in place of those in a model's config.json.
#
#     config.json                          overrides                         merged
#     max_position_embeddings = 4096       max_position_embeddings = 32768   max_position_embeddings = 32768
#     rope_theta = 1e6                     rope_scaling.type = "yarn"        rope_parameters = {rope_theta = 1e6,
#                                          rope_scaling.factor = 8.0             rope_type = "yarn", factor = 8.0}
#
# Tables are merged, and other values are replaced. config.json has rotary embeddings in one of three forms:
# ``rope_theta`` beside ``rope_scaling`` with ``type`` or with ``rope_type``, or ``rope_parameters`` with all values.
# An override in one form applies to a config in any form.

PARAMETERS = "rope_parameters"
ROPE = (PARAMETERS, "rope_scaling", "rope_theta")
"""Keys of rotary embeddings."""
ELSEWHERE = {
    "dtype": "model.dtype",
    "torch_dtype": "model.dtype",
    "model_type": "model.path",
    "architectures": "model.path",
}
"""Keys of config.json that another setting decides."""


def check_overrides(overrides: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a key that another setting decides."""
    for key, setting in ELSEWHERE.items():
        if key in overrides:
            raise ConfigError(f"model.overrides.{key}: set {setting} instead")


def merged(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Contents of config.json with the overrides applied, as a new dict with no table of either argument."""
    if any(key in overrides for key in ROPE):
        config, overrides = _with_parameters(config), _with_parameters(overrides)
    found = {key: _copied(value) for key, value in config.items()}
    for key, value in overrides.items():
        if not (isinstance(value, Mapping) and isinstance(found.get(key), Mapping)):
            found[key] = _copied(value)
        elif key == PARAMETERS:
            found[key] |= _copied(value)
        else:
            found[key] = merged(found[key], value)
    return found


def _with_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Copy of ``config`` with all keys of rotary embeddings, if there are any, in ``rope_parameters``."""
    for key in ROPE[:2]:
        if not isinstance(config.get(key), Mapping | NoneType):
            raise ConfigError(f"{key} of config.json or model.overrides is {config[key]!r:.60}: expected a table")
    found = {key: value for key, value in config.items() if key not in ROPE}
    parameters = dict(config.get("rope_scaling") or {}) | dict(config.get(PARAMETERS) or {})
    if "type" in parameters:
        parameters["rope_type"] = parameters.pop("type")
    if (theta := config.get("rope_theta")) is not None:
        parameters.setdefault("rope_theta", theta)
    return found | ({PARAMETERS: parameters} if parameters else {})


def _copied(value: Any) -> Any:
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, Mapping) else value


# ── positions ─────────────────────────────────────────────────────────────────────────────────
# The longest sequence that a language model knows, with its scaled rotary embeddings.

MAX_POSITIONS = 2**62
POSITIONS = ("max_position_embeddings", "n_positions")
"""Keys of config.json."""


def scaled_positions(longest: int | None, rope: Mapping[str, Any]) -> int | None:
    """Positions of a model whose rotary embeddings are scaled by ``rope``; None if it has no limit."""
    original, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
    if longest and original and factor:
        return max(longest, int(min(original * factor, MAX_POSITIONS)))
    return longest


def known_positions(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> int | None:
    """
    Positions by the contents of a config.json with overrides, and no fewer than transformers would find.

    None if it names none: then only transformers knows the default of the architecture.
    """
    changed = merged(config, overrides)
    language = changed.get("text_config")
    values = _with_parameters(language if isinstance(language, Mapping) else changed)
    longest = next((values[key] for key in POSITIONS if isinstance(values.get(key), int)), None)
    rope = values.get(PARAMETERS) or {}
    scaling = {"original_max_position_embeddings": longest, **rope} if isinstance(rope, Mapping) else {"factor": ""}
    numbers = (scaling.get("factor"), scaling.get("original_max_position_embeddings"))
    if not all(isinstance(number, int | float | NoneType) for number in numbers):
        return None  # transformers says what is wrong with it
    return scaled_positions(longest, scaling)


def refuse_beyond(longest: int | None, positions: int) -> None:
    """Raise `ConfigError` unless a model that knows ``longest`` positions, None for any, can hold a slot of so many."""
    if longest and positions > longest:
        raise ConfigError(
            f"a slot holds {positions} tokens (prompt and completion), but the model knows {longest} positions; "
            f"shorten data.max_prompt_tokens, or sampling.max_tokens and evaluation.max_tokens (of episodes: "
            f"environment.max_tokens), or set model.overrides.max_position_embeddings"
        )


# ── hub snapshot ──────────────────────────────────────────────────────────────────────────────
# Paths in the cache of the Hugging Face Hub, which tell the name and the commit of what they hold.

_SNAPSHOT = re.compile(
    r".*/(?:models|datasets)--(?P<owner>.+?)--(?P<name>[^/]+)/snapshots/(?P<commit>[0-9a-f]+)(?:/(?P<file>.+))?/?"
)


class HubSnapshot(Struct, frozen=True):
    repo: str
    """``owner/name``."""
    commit: str
    file: str
    """Path of a file in the snapshot; empty for the folder itself."""


def snapshot_of(path: str) -> HubSnapshot | None:
    """The snapshot that a path is in; None outside the cache."""
    found = _SNAPSHOT.fullmatch(path)
    return HubSnapshot(f"{found['owner']}/{found['name']}", found["commit"], found["file"] or "") if found else None
