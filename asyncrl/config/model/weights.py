"""
Weights of a model directory against its config.json, by the headers of its safetensors files: takes milliseconds.

    config.json                          num_hidden_layers  vocab_size
                                                 │              │
    model.layers.0 … layers.N-1.* ───────────────┘              │
    model.embed_tokens.weight [vocab_size, hidden_size] ────────┘

Only what every family of models has is compared; the trainer compares the rest when it loads the model.
"""

import os
import re
from collections.abc import Iterator, Mapping
from itertools import count
from math import prod
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from asyncrl.errors import ConfigError
from asyncrl.files.foreign import NoSuchFile, opened, parse_json, read_json, within
from asyncrl.foreign_text import shown

# ── safetensors header ────────────────────────────────────────────────────────────────────────
# Headers of safetensors files: names and shapes of a model's tensors, without a byte of their values.
#
#     8 bytes   length of the header, little-endian
#     header    JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
#     values    one tensor after the other, without a gap, up to the end of the file

MAX_HEADER = 16 << 20
"""Longest header in bytes, of some 150,000 tensors."""
METADATA = "__metadata__"
REMEDY = "copy the model directory again"
BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}
"""Bits of an element, by the names of safetensors 0.8."""

Shapes = dict[str, tuple[int, ...]]
Natural = Annotated[int, Meta(ge=0)]


class HeaderEntry(Struct):
    """A tensor in the header of a file; the offsets are those of its bytes behind the header."""

    dtype: str
    shape: Annotated[tuple[Natural, ...], Meta(max_length=16)]
    data_offsets: tuple[Natural, Natural]


def read_shapes(path: Path) -> Shapes:
    """Shape of each tensor in a file. Raises as `read_header`."""
    return {name: entry.shape for name, entry in read_header(path)[1].items()}


def read_header(path: Path) -> tuple[int, dict[str, HeaderEntry]]:
    """Bytes before the values, and each tensor; raises `ConfigError` unless they fill the file, one after the other."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length) if length <= min(MAX_HEADER, size - 8) else b""
    source = shown(str(path))
    raw = parse_json(header, dict[str, msgspec.Raw], f"the safetensors header of {source}", REMEDY)
    entries = {
        name: parse_json(bytes(entry), HeaderEntry, f"{shown(name)} in the safetensors header of {source}", REMEDY)
        for name, entry in raw.items()
        if name != METADATA
    }
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        if problem := _problem(entry, end):
            raise ConfigError(f"{source} is damaged: {shown(name)} {problem}; {REMEDY}")
        end = entry.data_offsets[1]
    if size != (expected := 8 + length + end):
        raise ConfigError(f"{source} is damaged: expected {expected:,} bytes by its header, got {size:,}; {REMEDY}")
    return 8 + length, entries


def _problem(entry: HeaderEntry, end: int) -> str:
    """Fault of a tensor behind ``end`` bytes of values, in words; empty if it has none."""
    start, stop = entry.data_offsets
    if entry.dtype not in BITS:
        return f"has the dtype {shown(entry.dtype)}, expected one of {', '.join(BITS)}"
    if start != end:
        return f"begins at byte {start:,} of the values, expected {end:,}, where the tensor before it ends"
    if (stop - start) * 8 != (bits := prod(entry.shape) * BITS[entry.dtype]):
        return f"has {stop - start:,} bytes, expected {bits // 8:,} of {entry.dtype} in the shape {list(entry.shape)}"
    return ""


# ── weights ───────────────────────────────────────────────────────────────────────────────────

CONFIG = "config.json"
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
EMBEDDINGS = re.compile(r"(.*\.|)(embed_tokens|wte|word_embeddings|embed_in|tok_embeddings)\.weight")
"""Names of token embeddings; what precedes them precedes the layers of the language model too."""
NUM_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
LAYERS = re.compile(r"(num|n)_(\w+_)?(layers?|blocks)|\w+_layers|depth")
"""Keys of config.json that say how often a model repeats its modules."""
SIZES = re.compile(r"\w*(layers?|depth|experts?|heads?|size|dims?|channels|rank|hidden|inner|embd?|model|width|ffn)")
"""Keys of config.json that say how large modules are."""
UNBOUNDED = 1 << 16
"""Sizes up to which nothing is asked: some keys name no weight, such as ``sliding_window_size``."""


class _WeightIndex(Struct):
    weight_map: dict[str, str]


def read_config(model: Path) -> dict[str, Any]:
    """The contents of config.json; raises `ConfigError` if it cannot be read."""
    return read_json(within(model, CONFIG), dict[str, Any], remedy=REMEDY)


def check_weights(model: Path, setting: str) -> Shapes:
    """
    Shapes of a model's weights by their names.

    ``setting`` is the key of the path, for messages. Raises `ConfigError` if a file is missing or damaged, or the
    weights have other layers or another vocabulary than config.json says.
    """
    config = read_config(model)
    shapes = _shapes(model, setting)
    check_sizes(config, shapes, f"{setting}={model}")
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


def weight_files(model: Path) -> Iterator[Path]:
    """Safetensors files of a directory; raises `ConfigError` if their index cannot be read, or for one outside."""
    names = [WHOLE] if (model / WHOLE).exists() else dict.fromkeys(_weight_map(model).values())
    return (within(model, name) for name in names)


def _weight_map(model: Path) -> dict[str, str]:
    """Name of the file of each weight; empty without an index."""
    if not (model / INDEX).exists():
        return {}
    return read_json(within(model, INDEX), _WeightIndex, MAX_HEADER, REMEDY).weight_map


def _shapes(model: Path, setting: str) -> Shapes:
    shapes: Shapes = {}
    for path in weight_files(model):
        try:
            shapes |= read_shapes(path)
        except NoSuchFile as error:
            raise ConfigError(
                f"{setting}={model} lacks {shown(path.name)}, which its {INDEX} names; {REMEDY}"
            ) from error
    if not shapes:
        raise ConfigError(
            f"{setting}={model} has no weights: expected {WHOLE}, or {INDEX} and the files that it names; other "
            f"formats are not read"
        )
    index = {} if (model / WHOLE).exists() else _weight_map(model)
    if missing := [name for name in index if name not in shapes]:
        name = missing[0]
        raise ConfigError(f"{model / index[name]} lacks {shown(name)!r}, which {INDEX} says it has; {REMEDY}")
    return shapes


def check_sizes(config: Mapping[str, Any], shapes: Shapes, source: str) -> None:
    """Raise `ConfigError` for a config that asks for more or larger modules than the files hold, before any is made."""
    longest = max((dim for shape in shapes.values() if prod(shape) for dim in shape), default=0)
    for key, value in _numbers(config):
        if LAYERS.fullmatch(key):
            most = max(len(shapes), 256)
            held = f"{len(shapes):,} tensors"
        elif SIZES.fullmatch(key):
            most = max(longest, len(shapes), UNBOUNDED)
            held = f"{len(shapes):,} tensors, of at most {longest:,} rows or columns"
        else:
            continue
        if value > most:
            raise ConfigError(
                f"{source}: {CONFIG} says {key}={value:,}, but the safetensors hold {held}; use config and weights of "
                f"one model"
            )


def _numbers(config: Mapping[str, Any]) -> Iterator[tuple[str, int | float]]:
    """Numbers in config.json and its nested configs, with their keys."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _numbers(value)
        elif isinstance(value, int | float):
            yield key, value
        elif isinstance(value, list):
            yield from ((key, number) for number in value if isinstance(number, int | float))


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
    layer = re.compile(rf"{re.escape(prefix)}(?:layers|h|blocks)\.([0-9]{{1,9}})\.")
    found = {int(match[1]) for name in shapes if (match := layer.match(name))}
    if expected is None or not found:
        return
    predicting = config.get("num_nextn_predict_layers")  # kept behind the others by some families, and not loaded
    missing = next(number for number in count() if number not in found)
    if missing < expected:
        got = f"there are {len(found)}, without layer {missing}"
    elif max(found) >= expected + (predicting if isinstance(predicting, int) else 0):
        got = f"there are {max(found) + 1}"
    else:
        return
    raise ConfigError(
        f"{source}: {CONFIG} says {expected} layers, but in the safetensors {got}; use config and weights of one model"
    )
