"""
A version as a stream of blocks, in the layout's order: written in parts by the trainer, read part by part by a rollout.

    bucket 0: block, block   bucket 1: block ─▶ length, body, length, body, length, body ─▶ parts of about 1 MiB
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from asyncrl.errors import TransferError
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.staging import Staging
from asyncrl.weights.stored.blocks import BLOCK_ITEMS, apply_delta, decode_whole, encode_delta, encode_whole
from asyncrl.weights.stored.planes import Words

FORMAT = 1
"""Version of the encoding, in `StoredWeights`."""
LENGTH = struct.Struct("<I")
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
        body = encode_whole(words) if base is None else encode_delta(words, _words(base, block))
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


def host_staging(layout: Layout) -> Staging:
    """Staging buffers in host memory, where versions are encoded and decoded."""
    return Staging(layout, torch.device("cpu"))


def _words(staging: Staging, block: Block) -> Words:
    """View of a block's elements as unsigned integers."""
    items = staging.buckets[block.bucket].numpy().view(np.dtype(f"<u{block.item_bytes}"))
    words: Words = items[block.start : block.end]
    return words
