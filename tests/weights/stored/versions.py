"""Versions of a small model: each differs from the one before in about a tenth of its elements."""

import torch

from asyncrl.messages.weights import StoredWeights
from asyncrl.weights.contents.header import Checksum
from asyncrl.weights.contents.layout import Layout, TensorSpec
from asyncrl.weights.staging import Staging
from asyncrl.weights.stored.staged import digest
from asyncrl.weights.stored.stream import FORMAT, write

SPECS = [
    TensorSpec(name="embed", shape=(40, 3), dtype="float32"),
    TensorSpec(name="norm", shape=(7,), dtype="bfloat16"),
    TensorSpec(name="head", shape=(50, 4), dtype="bfloat16"),
]
LAYOUT = Layout(SPECS, 128)
CHECKSUM = Checksum(torch.device("cpu"))


def tensors(version: int) -> dict[str, torch.Tensor]:
    """The weights of a version by name."""
    generator = torch.Generator().manual_seed(0)
    made = {spec.name: torch.randn(spec.shape, generator=generator) for spec in SPECS}
    for _ in range(version):
        for tensor in made.values():
            is_changed = torch.rand(tensor.shape, generator=generator) < 0.1
            tensor.add_(torch.randn(tensor.shape, generator=generator) * is_changed)
    return {spec.name: made[spec.name].to(getattr(torch, spec.dtype)) for spec in SPECS}


def contents(version: int) -> Staging:
    staging = Staging(LAYOUT)
    for name, tensor in tensors(version).items():
        staging.tensors[name].copy_(tensor)
    return staging


def parts(new: Staging, base: Staging | None) -> list[bytes]:
    return list(write(new, base))


def anchor(version: int) -> StoredWeights:
    return StoredWeights(version, LAYOUT.hash, digest(contents(version), CHECKSUM), FORMAT)


def delta(version: int) -> StoredWeights:
    """The delta from the version before."""
    new, base = anchor(version), anchor(version - 1)
    return StoredWeights(version, LAYOUT.hash, new.digest, FORMAT, version - 1, base.digest)
