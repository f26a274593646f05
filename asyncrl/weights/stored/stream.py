"""
A version as a stream of blocks, in the layout's order: written in parts by the trainer, read part by part by a rollout.

    bucket 0: block, block   bucket 1: block ─▶ length, body, length, body, length, body ─▶ parts of about 1 MiB
"""

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import zstandard
from numpy.typing import NDArray

from asyncrl.errors import TransferError
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.staging import Staging

# ── planes ────────────────────────────────────────────────────────────────────────────────────
# Byte planes of integers, each compressed by itself.
#
#     [3, 260, 7] as 16 bits ─▶ low bytes [3, 4, 7] ─▶ zstd        most planes of small numbers are all zero: no bytes
#                            └▶ high bytes [0, 1, 0] ─▶ zstd
#
# The numbers are close to random within their range, so only the frequencies of bytes can be used, not repetitions,
# for which zstd hardly searches here. Gaps of random positions take 1.2 % more than their entropy.

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
    """First plane of ``packed``, decompressed, and the bytes after it."""
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


# ── blocks ────────────────────────────────────────────────────────────────────────────────────
# Encoding of one block of elements, whole or against a base block.
#
#     base   a b c d e f g h          changed elements at 1, 6
#     new    a B c d e f G h          gaps      elements to skip before each: 1 4
#                                     steps     B - b, G - g as integers: 1, -1, ... ─▶ 2, 1, ... (zigzag)
#
# Gaps and steps are packed as byte planes. After an optimizer step at a small learning rate nine of ten changed
# elements move to a neighbouring value, so that a step takes little more than its sign. Elements are compared and
# restored as bits: NaNs keep their payloads, and -0.0 differs from 0.0.

COUNT = struct.Struct("<I")
GAP = np.dtype("<u4")
BLOCK_ITEMS = 1 << 22
"""Elements of a block: bounds the memory that encoding takes, and fits a gap into 32 bits."""


def encode_delta(new: Words, base: Words) -> bytes:
    """The elements of ``new`` that differ from ``base`` (both [num] unsigned, of one dtype)."""
    changed = np.flatnonzero(new != base)
    gaps = np.diff(changed, prepend=-1) - 1
    steps = new[changed] - base[changed]
    # 0, -1, 1, -2, 2, ... as 0, 1, 2, 3, 4, ...: small steps of both signs are small numbers.
    zigzag = (steps << 1) ^ np.negative(steps >> (steps.itemsize * 8 - 1))
    return COUNT.pack(len(changed)) + pack(gaps.astype(GAP)) + pack(zigzag)


def decode_whole(body: memoryview, words: Words) -> None:
    """Overwrite a block; raises `TransferError` if ``body`` is not one of its size. The block is unchanged then."""
    found, rest = unpack(body, len(words), words.dtype)
    if rest:
        raise TransferError(f"stored weights are damaged: {len(rest)} bytes follow a block")
    words[:] = found


def apply_delta(body: memoryview, words: Words) -> None:
    """Change a base block to the new block; raises `TransferError` if ``body`` does not fit. Unchanged then."""
    num = COUNT.unpack_from(body)[0] if len(body) >= COUNT.size else len(words) + 1
    if num > len(words):
        raise TransferError(f"stored weights are damaged: {num} changes in a block of {len(words)} elements")
    gaps, rest = unpack(body[COUNT.size :], num, GAP)
    steps, rest = unpack(rest, num, words.dtype)
    where = np.cumsum(gaps.astype(np.int64) + 1) - 1
    if rest or (num and where[-1] >= len(words)):
        raise TransferError("stored weights are damaged: a delta does not fit its block")
    words[where] += (steps >> 1) ^ np.negative(steps & 1)  # from zigzag


# ── stream ────────────────────────────────────────────────────────────────────────────────────

FORMAT = 1
"""Version of the encoding, in `StoredWeights`."""
PART_BYTES = 1 << 20
"""Bytes of a part: a fifth of a second on a line of 50 Mbit/s."""


class Block(NamedTuple):
    """Elements ``start .. end - 1`` of one bucket."""

    bucket: int
    start: int
    end: int
    item_bytes: int


def blocks(layout: Layout) -> Iterator[Block]:
    for number, bucket in enumerate(layout.buckets):
        num_items = bucket.num_bytes // bucket.item_bytes
        for start in range(0, num_items, BLOCK_ITEMS):
            yield Block(number, start, min(start + BLOCK_ITEMS, num_items), bucket.item_bytes)


def write(new: Staging, base: Staging | None) -> Iterator[bytes]:
    """
    Yield the parts of a version, at least one.

    Args:
        base: Version to encode changes from; None encodes all elements.
    """
    unsent = bytearray()
    for block in blocks(new.layout):
        words = _words(new, block)
        body = pack(words) if base is None else encode_delta(words, _words(base, block))
        unsent += LENGTH.pack(len(body)) + body
        while len(unsent) > PART_BYTES:
            yield bytes(unsent[:PART_BYTES])
            del unsent[:PART_BYTES]
    yield bytes(unsent)


class Reader:
    """
    Decodes a stream into ``staging``, which holds the base of a delta.

    Until `is_complete`, and after a `TransferError`, the staging buffers hold neither version.
    """

    def __init__(self, staging: Staging, *, is_delta: bool) -> None:
        self._staging = staging
        self._is_delta = is_delta
        self._blocks = blocks(staging.layout)
        self._next = next(self._blocks, None)
        self._unread = bytearray()

    @property
    def is_complete(self) -> bool:
        return self._next is None and not self._unread

    def read(self, part: memoryview) -> None:
        """Decode the blocks that ``part`` completes. Raises `TransferError` if they do not fit the layout."""
        self._unread += part
        while len(self._unread) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(self._unread)[0]
            if len(self._unread) < end:
                return
            self._decode(memoryview(bytes(self._unread[LENGTH.size : end])))
            del self._unread[:end]

    def _decode(self, body: memoryview) -> None:
        if self._next is None:
            raise TransferError("stored weights are damaged: there are more blocks than in the weight layout")
        words = _words(self._staging, self._next)
        if self._is_delta:
            apply_delta(body, words)
        else:
            decode_whole(body, words)
        self._next = next(self._blocks, None)


def _words(staging: Staging, block: Block) -> Words:
    """View of a block's elements as unsigned integers."""
    items = staging.buckets[block.bucket].numpy().view(np.dtype(f"<u{block.item_bytes}"))
    words: Words = items[block.start : block.end]
    return words
