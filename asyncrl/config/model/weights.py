"""
Weights of a model directory against its config.json, by the headers of its safetensors files: takes milliseconds.

    config.json                          num_hidden_layers  vocab_size
                                                 │              │
    model.layers.0 … layers.N-1.* ───────────────┘              │
    model.embed_tokens.weight [vocab_size, hidden_size] ────────┘

Only what every family of models has is compared; the trainer compares the rest when it loads the model.
"""

import re
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from asyncrl.errors import ConfigError

# ── safetensors header ────────────────────────────────────────────────────────────────────────
# Headers of safetensors files: names and shapes of a model's tensors, without a byte of their values.
#
#     8 bytes   length of the header, little-endian
#     header    JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
#     values    up to the largest offset; a file of any other size was cut off, or is not safetensors

MAX_HEADER = 100_000_000
"""Longest header in bytes, the limit of safetensors itself."""
REMEDY = "copy the model directory again"

Shapes = dict[str, tuple[int, ...]]


class _Entry(Struct):
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read_shapes(path: Path) -> Shapes:
    """Shape of each tensor in a file; raises `ConfigError` if the file is damaged or incomplete."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = file.read(length) if length <= min(MAX_HEADER, size - 8) else b""
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        entries = {name: msgspec.json.decode(e, type=_Entry) for name, e in raw.items() if name != "__metadata__"}
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is damaged: it does not begin with a safetensors header; {REMEDY}") from error
    expected = 8 + length + max((entry.data_offsets[1] for entry in entries.values()), default=0)
    if size != expected:
        raise ConfigError(f"{path} is damaged: expected {expected:,} bytes by its header, got {size:,}; {REMEDY}")
    return {name: entry.shape for name, entry in entries.items()}


# ── weights ───────────────────────────────────────────────────────────────────────────────────

CONFIG = "config.json"
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
EMBEDDINGS = re.compile(r"(.*\.|)(embed_tokens|wte|word_embeddings|embed_in|tok_embeddings)\.weight")
"""Names of token embeddings; what precedes them precedes the layers of the language model too."""
NUM_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")


class _WeightIndex(Struct):
    weight_map: dict[str, str]


def read_config(model: Path) -> dict[str, Any]:
    """The contents of config.json; raises `ConfigError` if it cannot be read."""
    try:
        return msgspec.json.decode((model / CONFIG).read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError(f"cannot read {model / CONFIG}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{model / CONFIG} is not a JSON object: {error}; {REMEDY}") from error


def check_weights(model: Path, setting: str) -> Shapes:
    """
    Shapes of a model's weights by their names.

    ``setting`` is the key of the path, for messages. Raises `ConfigError` if a file is missing or damaged, or the
    weights have other layers or another vocabulary than config.json says.
    """
    config = read_config(model)
    shapes = _shapes(model, setting)
    text_config = config.get("text_config")
    language = text_config if isinstance(text_config, dict) else config
    if found := _embedding(shapes):
        name, prefix = found
        _check_vocabulary(shapes, name, language.get("vocab_size"), f"{setting}={model}")
        _check_layers(shapes, prefix, language, f"{setting}={model}")
    return shapes


def vocabulary(shapes: Shapes) -> int | None:
    """Rows of the token embedding, one for each token id; None if no weight has the name of one."""
    found = _embedding(shapes)
    return shapes[found[0]][0] if found else None


def weight_files(model: Path) -> list[Path]:
    """Safetensors files of a directory that `check_weights` accepts."""
    if (model / WHOLE).is_file():
        return [model / WHOLE]
    index = msgspec.json.decode((model / INDEX).read_bytes(), type=_WeightIndex).weight_map
    return [model / file for file in dict.fromkeys(index.values())]


def _shapes(model: Path, setting: str) -> Shapes:
    if (model / WHOLE).is_file():
        return read_shapes(model / WHOLE)
    if not (model / INDEX).is_file():
        raise ConfigError(
            f"{setting}={model} has no weights: expected {WHOLE}, or {INDEX} and the files that it names; other "
            f"formats are not read"
        )
    try:
        index = msgspec.json.decode((model / INDEX).read_bytes(), type=_WeightIndex).weight_map
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{model / INDEX} is damaged: {error}; {REMEDY}") from error
    shapes: Shapes = {}
    for file in dict.fromkeys(index.values()):
        if not (model / file).is_file():
            raise ConfigError(f"{setting}={model} lacks {file}, which its {INDEX} names; {REMEDY}")
        shapes |= read_shapes(model / file)
    if missing := [name for name in index if name not in shapes]:
        raise ConfigError(f"{model / index[missing[0]]} lacks {missing[0]!r}, which {INDEX} says it has; {REMEDY}")
    return shapes


def _embedding(shapes: Shapes) -> tuple[str, str] | None:
    """Name of the token embedding, and what precedes it."""
    for name, shape in shapes.items():
        if (match := EMBEDDINGS.fullmatch(name)) and len(shape) == 2:
            return name, match[1]
    return None


def _check_vocabulary(shapes: Shapes, name: str, expected: Any, source: str) -> None:
    if isinstance(expected, int) and shapes[name][0] != expected:
        raise ConfigError(
            f"{source}: {CONFIG} says vocab_size={expected}, but the weight {name!r} has {shapes[name][0]} rows; use "
            f"config and weights of one model"
        )


def _check_layers(shapes: Shapes, prefix: str, config: dict[str, Any], source: str) -> None:
    expected = next((config[key] for key in NUM_LAYERS if isinstance(config.get(key), int)), None)
    layer = re.compile(rf"{re.escape(prefix)}(?:layers|h|blocks)\.(\d+)\.")
    found = {int(match[1]) for name in shapes if (match := layer.match(name))}
    if expected is None or not found:
        return
    predicting = config.get("num_nextn_predict_layers") or 0  # kept behind the others by some families, and not loaded
    if missing := sorted(set(range(expected)) - found):
        got = f"there are {len(found)}, without layer {missing[0]}"
    elif max(found) >= expected + predicting:
        got = f"there are {max(found) + 1}"
    else:
        return
    raise ConfigError(
        f"{source}: {CONFIG} says {expected} layers, but in the safetensors {got}; use config and weights of one model"
    )
