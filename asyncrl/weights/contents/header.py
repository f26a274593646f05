"""
Header of a weight transfer: policy version, layout hash, base version of a delta, and whether checksums follow.

A collective whose two ends expect different sizes does not raise: it ends the process. The header has a fixed size and
determines all later sizes, so a receiver that cannot accept the transfer stops before the first bucket.
"""

import struct

import torch
from msgspec import Struct
from torch import Tensor

from asyncrl.errors import TransferError
from asyncrl.weights.contents.layout import Layout

HEADER_FORMAT = struct.Struct("<q32sq?")
NO_VERSION = -1
"""Stands for "no policy version"."""


class Header(Struct, frozen=True):
    """First broadcast of a transfer."""

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
