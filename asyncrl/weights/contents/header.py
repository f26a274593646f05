"""
Header of a weight transfer (policy version, layout hash, base version of a delta, whether checksums follow), and the
checksum.

A collective whose two ends expect different sizes does not raise: it ends the process. The header has a fixed size and
determines all later sizes, so a receiver that cannot accept the transfer stops before the first bucket.
"""

import struct
from collections.abc import Iterator

import torch
from msgspec import Struct
from torch import Tensor

from asyncrl.errors import TransferError
from asyncrl.weights.contents.layout import Layout

HEADER_FORMAT = struct.Struct("<q32sq?")
NO_VERSION = -1
"""Stands for "no policy version"."""


class Header(Struct, frozen=True):
    """Header of a weight transfer: its first broadcast, by which every rank sees that all mean the same version."""

    policy_version: int
    """`NO_VERSION` if no complete version is staged."""
    layout_hash: str
    base_version: int = NO_VERSION
    """Version that the buckets are deltas from; `NO_VERSION` if the buckets are whole."""
    is_checked: bool = False
    """True if checksums follow the buckets."""

    def check(self, policy_version: int, layout: Layout) -> None:
        """Raise `TransferError` if the version or the layout differs from the expected one."""
        if self.layout_hash != layout.hash:
            raise TransferError(
                f"the sender's weight layout is {self.layout_hash[:8]}, the receiver's is {layout.hash[:8]}: trainer "
                f"and engine have different models, or different weights.bucket_bytes"
            )
        if self.policy_version != policy_version:
            raise TransferError(f"the sender has version {self.policy_version} staged, not {policy_version}")

    def encode(self, device: torch.device) -> Tensor:
        """[49] uint8."""
        digest = bytes.fromhex(self.layout_hash)
        packed = HEADER_FORMAT.pack(self.policy_version, digest, self.base_version, self.is_checked)
        return torch.tensor(list(packed), dtype=torch.uint8, device=device)


def blank(device: torch.device) -> Tensor:
    """[49] uint8: buffer to receive a header into."""
    return torch.empty(HEADER_FORMAT.size, dtype=torch.uint8, device=device)


def decode(received: Tensor) -> Header:
    version, digest, base_version, is_checked = HEADER_FORMAT.unpack(bytes(received.tolist()))
    return Header(version, digest.hex(), base_version, is_checked)


# ── checksum ──────────────────────────────────────────────────────────────────────────────────
# Polynomial checksum of a bucket, to verify that the received bytes are the sent bytes.
#
#     words x_0, x_1, ... of 32 bits ──▶ sum of x_i Q^(i+1), modulo 2^64
#
# The powers of Q make the sum depend on the position of each word. A word costs one integer product and one addition;
# integers are exact on every device, so a CPU and an accelerator compute the same sum.

WORD_BYTES = 4
Q = 0x9E3779B97F4A7C15
"""Base of the polynomial. It is 5 modulo 8, so its powers have the longest possible period, 2^62."""
MODULUS = 1 << 64
CPU_WORDS = 1 << 15
"""Words per block: the words, the powers and the products (640 KiB together) fit into the second-level cache."""
DEVICE_WORDS = 1 << 20
"""Words per block on accelerators, where the start of an operation dominates the cost; powers and products: 16 MiB."""


class Checksum:
    """
    Checksum function for buffers on one device, faster than most networks.

    It detects every change within one 32-bit word and every swap of two words. Other accidental damage goes undetected
    with a probability of at most about 2^-32. It is not a cryptographic hash: collisions can be constructed.
    """

    def __init__(self, device: torch.device) -> None:
        num_words = CPU_WORDS if device.type == "cpu" else DEVICE_WORDS
        self._powers = torch.full((num_words,), _signed(Q), dtype=torch.int64, device=device).cumprod(0)
        """[num_words] int64: Q, Q^2, ...; integer overflow is the modulus 2^64."""
        self._products = torch.empty_like(self._powers)

    def __call__(self, buffer: Tensor) -> int:
        """Signed 64-bit checksum of ``buffer`` ([num_bytes] uint8); an incomplete last word is padded with zeros."""
        total = start = 0
        for words in _blocks(buffer, len(self._powers)):
            num = len(words)
            products = torch.mul(words, self._powers[:num], out=self._products[:num])
            total += int(products.sum()) * pow(Q, start, MODULUS)
            start += num
        return _signed(total)


def _blocks(buffer: Tensor, num_words: int) -> Iterator[Tensor]:
    """Blocks of the buffer, each [<= num_words] int32; the padded last word comes last."""
    end = len(buffer) // WORD_BYTES * WORD_BYTES
    if end:
        yield from torch.split(buffer[:end].view(torch.int32), num_words)
    if end < len(buffer):
        last = buffer.new_zeros(WORD_BYTES)
        last[: len(buffer) - end] = buffer[end:]
        yield last.view(torch.int32)


def _signed(number: int) -> int:
    """The int64 value that is congruent to ``number`` modulo 2^64."""
    return (number + MODULUS // 2) % MODULUS - MODULUS // 2
