"""
Byte planes of integers, each compressed by itself.

    [3, 260, 7] as 16 bits ─▶ low bytes [3, 4, 7] ─▶ zstd        most planes of small numbers are all zero: no bytes
                           └▶ high bytes [0, 1, 0] ─▶ zstd

The numbers are close to random within their range, so only the frequencies of bytes can be used, not repetitions, for
which zstd hardly searches here. Gaps of random positions take 1.2 % more than their entropy.
"""

import struct
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from asyncrl.errors import TransferError

LENGTH = struct.Struct("<I")
MIN_MATCH, HASH_LOG = 7, 6
"""
Bytes of the shortest repetition, and logarithm of the number of places remembered: zstd's largest and smallest values.
Repetitions by chance cost more than their bytes: with zstd's own values a delta takes 2 % more and twice the time.
"""
PARAMETERS = zstandard.ZstdCompressionParameters.from_level(
    1, strategy=zstandard.STRATEGY_FAST, min_match=MIN_MATCH, hash_log=HASH_LOG, write_content_size=True
)

Words = NDArray[Any]
"""Unsigned integers of 8, 16, 32 or 64 bits, little-endian."""


def pack(words: Words) -> bytes:
    """Compressed planes of ``words`` ([num]), the lowest bytes first; each plane follows its length."""
    compressor = zstandard.ZstdCompressor(compression_params=PARAMETERS)
    planes = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), words.itemsize)
    packed = []
    for i in range(words.itemsize):
        plane = np.ascontiguousarray(planes[:, i])
        compressed = compressor.compress(plane.data) if plane.any() else b""
        packed += [LENGTH.pack(len(compressed)), compressed]
    return b"".join(packed)


def unpack(packed: memoryview, num: int, dtype: "np.dtype[Any]") -> tuple[Words, memoryview]:
    """
    ``num`` numbers of ``dtype``, and the bytes after them.

    Raises:
        TransferError: ``packed`` does not begin with so many numbers.
    """
    words = np.zeros(num, dtype)
    planes = words.view(np.uint8).reshape(num, dtype.itemsize)
    for i in range(dtype.itemsize):
        compressed, packed = _cut(packed)
        if compressed:
            planes[:, i] = _decompress(compressed, num)
    return words, packed


def _cut(packed: memoryview) -> tuple[memoryview, memoryview]:
    """The next plane, and the bytes after it."""
    if len(packed) < LENGTH.size or len(packed) < (end := LENGTH.size + LENGTH.unpack_from(packed)[0]):
        raise TransferError("stored weights are damaged: they end in the middle of a plane")
    return packed[LENGTH.size : end], packed[end:]


def _decompress(compressed: memoryview, num: int) -> NDArray[np.uint8]:
    try:
        if zstandard.frame_content_size(compressed) == num:  # Checked before any memory is taken.
            return np.frombuffer(zstandard.ZstdDecompressor().decompress(compressed), np.uint8)
    except zstandard.ZstdError as error:
        raise TransferError(f"stored weights are damaged: {error}") from error
    raise TransferError(f"stored weights are damaged: a plane has not {num} bytes")
