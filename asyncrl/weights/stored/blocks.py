"""
Encoding of one block of elements, whole or against a base block.

    base   a b c d e f g h          changed elements at 1, 6
    new    a B c d e f G h          gaps      elements to skip before each: 1 4
                                    steps     B - b, G - g as integers: 1, -1, ... ─▶ 2, 1, ... (zigzag)

Gaps and steps are packed as byte planes. After an optimizer step at a small learning rate nine of ten changed elements
move to a neighbouring value, so that a step takes little more than its sign. Elements are compared and restored as
bits: NaNs keep their payloads, and -0.0 differs from 0.0.
"""

import struct

import numpy as np

from asyncrl.errors import TransferError
from asyncrl.weights.stored.planes import Words, pack, unpack

COUNT = struct.Struct("<I")
GAP = np.dtype("<u4")
BLOCK_ITEMS = 1 << 22
"""Elements of a block: bounds the memory that encoding takes, and fits a gap into 32 bits."""


def encode_whole(words: Words) -> bytes:
    """All elements of a block ([num] unsigned)."""
    return pack(words)


def encode_delta(new: Words, base: Words) -> bytes:
    """The elements of ``new`` that differ from ``base`` (both [num] unsigned, of one dtype)."""
    changed = np.flatnonzero(new != base)
    gaps = np.diff(changed, prepend=-1) - 1
    steps = new[changed] - base[changed]
    return COUNT.pack(len(changed)) + pack(gaps.astype(GAP)) + pack(_zigzag(steps))


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
    words[where] += _unzigzag(steps)


def _zigzag(steps: Words) -> Words:
    """0, -1, 1, -2, 2, ... as 0, 1, 2, 3, 4, ...: small steps of both signs are small numbers."""
    numbers: Words = (steps << 1) ^ np.negative(steps >> (steps.itemsize * 8 - 1))
    return numbers


def _unzigzag(numbers: Words) -> Words:
    steps: Words = (numbers >> 1) ^ np.negative(numbers & 1)
    return steps
