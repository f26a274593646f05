"""Equal versions of one layout have equal digests, and no others."""

import torch

from asyncrl.weights.contents.header import Checksum
from asyncrl.weights.contents.layout import Layout, TensorSpec
from asyncrl.weights.staging import Staging
from asyncrl.weights.stored.staged import digest

SPEC = TensorSpec(name="embed", shape=(5, 3), dtype="float32")
CHECKSUM = Checksum(torch.device("cpu"))


def test_one_bit_changes_the_digest() -> None:
    one, other = Staging(Layout([SPEC], 64)), Staging(Layout([SPEC], 64))
    assert digest(one, CHECKSUM) == digest(other, CHECKSUM)
    other.buckets[0][17] ^= 1
    assert digest(one, CHECKSUM) != digest(other, CHECKSUM)


def test_minus_zero_is_not_zero() -> None:
    one, other = Staging(Layout([SPEC], 64)), Staging(Layout([SPEC], 64))
    other.tensors["embed"][0, 0] = -0.0
    assert digest(one, CHECKSUM) != digest(other, CHECKSUM)


def test_the_same_bytes_of_another_layout_have_another_digest() -> None:
    renamed = TensorSpec(name="head", shape=(5, 3), dtype="float32")
    assert digest(Staging(Layout([SPEC], 64)), CHECKSUM) != digest(Staging(Layout([renamed], 64)), CHECKSUM)
