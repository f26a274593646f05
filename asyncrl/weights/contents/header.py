"""
What a sender says first: which version follows, laid out how, and what comes with it.

Two ends that disagree on a size would not raise in the collective but end the process. So they compare what sizes
follow from in a message whose own size never changes, and a receiver that cannot go on stops before the first bucket.
"""

import struct

import torch
from msgspec import Struct
from torch import Tensor

from asyncrl.errors import TransferError
from asyncrl.weights.contents.layout import Layout

LAYOUT = struct.Struct("<q32sq?")
NOTHING = -1
"""In the place of a version: there is none."""


class Header(Struct, frozen=True):
    """The first message of a transfer."""

    policy_version: int
    """`NOTHING` if no complete version is staged."""
    layout_hash: str
    base_version: int = NOTHING
    """The buckets are deltas from it; `NOTHING`: they are whole."""
    is_checked: bool = False
    """Checksums follow the buckets."""

    def check(self, policy_version: int, plan: Layout) -> None:
        """
        Refuse to go on if what follows is not what was asked for.

        Raises:
            TransferError: Another version, or a plan that differs from ours.
        """
        if self.layout_hash != plan.hash:
            raise TransferError(
                f"the sender's weight plan is {self.layout_hash[:8]}, ours is {plan.hash[:8]}: trainer and engine hold "
                f"different models, or different weights.bucket_bytes"
            )
        if self.policy_version != policy_version:
            raise TransferError(f"the sender has policy_version {self.policy_version} staged, not {policy_version}")

    def encode(self, device: torch.device) -> Tensor:
        """[49] uint8."""
        digest = bytes.fromhex(self.layout_hash)
        packed = LAYOUT.pack(self.policy_version, digest, self.base_version, self.is_checked)
        return torch.tensor(list(packed), dtype=torch.uint8, device=device)


def blank(device: torch.device) -> Tensor:
    """[49] uint8, to be received into."""
    return torch.empty(LAYOUT.size, dtype=torch.uint8, device=device)


def decode(received: Tensor) -> Header:
    """What was said."""
    version, digest, base_version, is_checked = LAYOUT.unpack(bytes(received.tolist()))
    return Header(version, digest.hex(), base_version, is_checked)
