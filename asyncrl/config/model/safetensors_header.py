"""
Headers of safetensors files: names and shapes of a model's tensors, without a byte of their values.

    8 bytes   length of the header, little-endian
    header    JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
    values    up to the largest offset; a file of any other size was cut off, or is not safetensors
"""

from pathlib import Path

import msgspec
from msgspec import Struct

from asyncrl.errors import ConfigError

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
