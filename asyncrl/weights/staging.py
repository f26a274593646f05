"""
The bytes in between: what the trainer copied out of its model, or what an engine has yet to copy into its own.

Also the header that travels before the buckets. Two ends that disagree on a size would not raise in the collective
but end the process, so they compare version and plan first, in a message whose size never changes.
"""

import struct

import torch
from torch import Tensor

from asyncrl.errors import TransferError
from asyncrl.weights.plan import Plan

HEADER = struct.Struct("<q32s")
"""policy_version, sha256 of the plan."""


class Staging:
    """One buffer per bucket of a plan, allocated once, and a view of every tensor in it."""

    def __init__(self, plan: Plan) -> None:
        self.buckets = [torch.empty(bucket.num_bytes, dtype=torch.uint8) for bucket in plan.buckets]
        """[num_bytes] uint8 each."""
        self.tensors: dict[str, Tensor] = {}
        """By name, in the plan's shapes and dtypes."""
        for bucket, buffer in zip(plan.buckets, self.buckets, strict=True):
            for slot in bucket.slots:
                raw = buffer[slot.offset : slot.offset + slot.spec.num_bytes]
                self.tensors[slot.spec.name] = raw.view(getattr(torch, slot.spec.dtype)).view(slot.spec.shape)


def header(policy_version: int, plan: Plan) -> Tensor:
    """[40] uint8 that says what follows."""
    return torch.tensor(list(HEADER.pack(policy_version, bytes.fromhex(plan.hash))), dtype=torch.uint8)


def check_header(received: Tensor, policy_version: int, plan: Plan) -> None:
    """
    Refuse to go on if what follows is not what was asked for.

    Raises:
        TransferError: Another version, or a plan that differs from ours.
    """
    version, digest = HEADER.unpack(bytes(received.tolist()))
    if digest.hex() != plan.hash:
        raise TransferError(
            f"the sender's weight plan is {digest.hex()[:8]}, ours is {plan.hash[:8]}: trainer and engine hold "
            f"different models, or different weights.bucket_bytes"
        )
    if version != policy_version:
        raise TransferError(f"the sender has policy_version {version} staged, not {policy_version}")
