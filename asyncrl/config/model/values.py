"""
Values of a model's weights, looked at before a run: of each tensor its beginning, middle and end.

All of them would take as long as loading the model, which refuses the first that is not finite.
"""

from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path

import numpy as np

from asyncrl.config.model.weights import BITS, REMEDY, HeaderEntry, read_header
from asyncrl.errors import ConfigError
from asyncrl.files.foreign import opened
from asyncrl.foreign_text import shown

BLOCK = 1 << 16
"""Most bytes of a part of a tensor."""
BUDGET = 1 << 28
"""Most bytes that are read of a file: a second."""
NOT_FINITE = {"F8_E4M3": 0x7F, "F8_E5M2": 0x7C, "F16": 0x7C00, "BF16": 0x7F80, "F32": 0x7F800000, "F64": 0x7FF << 52}
"""Bits that are all set in NaN and the infinities, and in no other value."""


def check_values(files: Iterable[Path]) -> str:
    """
    Number of values that were looked at in safetensors files, in words.

    Raises:
        ConfigError: One of them is NaN or infinite, or a file is damaged.
    """
    looked = total = 0
    for path in files:
        start, entries = read_header(path)
        block = max(min(BLOCK, BUDGET // (3 * len(entries) or 1)) // 8 * 8, 8)
        with opened(path) as file:
            for name, entry in entries.items():
                size = BITS[entry.dtype] // 8
                for part in _parts(file, start, entry, block) if entry.dtype in NOT_FINITE else ():
                    looked += len(part) // size
                    bits, mask = np.frombuffer(part, f"<u{size}"), NOT_FINITE[entry.dtype]
                    if ((bits & mask) == mask).any():
                        raise ConfigError(
                            f"{shown(str(path))}: {shown(name)} has values that are NaN or infinite; {REMEDY}"
                        )
                total += (entry.data_offsets[1] - entry.data_offsets[0]) * 8 // BITS[entry.dtype]
    return f"{f'{looked:,} of ' if looked < total else ''}{total:,} values looked at, all finite"


def _parts(file: BufferedReader, start: int, entry: HeaderEntry, block: int) -> Iterator[bytes]:
    """Bytes of a tensor: all, or if they are more than three blocks, one at its beginning, middle and end."""
    begin, end = entry.data_offsets
    if end - begin <= 3 * block:
        block, places = end - begin, [begin]
    else:
        places = [begin, begin + (end - begin) // 16 * 8, end - block]
    for place in places:
        file.seek(start + place)
        part = file.read(block)
        if len(part) < block:
            raise ConfigError(f"{shown(file.name)} became shorter while it was read; {REMEDY}")
        yield part
