"""Digest of a model's weights, to compare two processes bit for bit."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def weights_digest(tensors: Mapping[str, Tensor]) -> str:
    """sha256 over the bfloat16 bits of all tensors, by name."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        bits = tensors[name].detach().to(torch.bfloat16).contiguous().view(torch.uint8)
        sha.update(name.encode() + bits.numpy().tobytes())
    return sha.hexdigest()
