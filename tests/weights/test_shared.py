"""Tensors reach another process bit for bit and without a copy, and their memory ends with its owner."""

import os
import subprocess
import sys
from collections.abc import Mapping

import msgspec
import pytest
import torch
from torch import Tensor

from asyncrl.errors import EngineError, TransferError
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.shared import SharedTensors, shared_staging
from asyncrl.weights.staging import Staging
from tests.weights.party import LAYOUT, tensors
from tests.weights.shared_memory import shared_memory

CPU = torch.device("cpu")


def staged(seed: int) -> Staging:
    staging = shared_staging(LAYOUT)
    for name, tensor in tensors(seed).items():
        staging.tensors[name].copy_(tensor)
    return staging


def test_the_buffers_are_those_of_any_staging_and_zero_at_first() -> None:
    ordinary, shared = Staging(LAYOUT, CPU), shared_staging(LAYOUT)

    assert [len(buffer) for buffer in shared.buckets] == [len(buffer) for buffer in ordinary.buckets]
    assert not any(int(buffer.count_nonzero()) for buffer in shared.buckets)
    for staging in (ordinary, shared):
        for name, tensor in tensors(1).items():
            staging.tensors[name].copy_(tensor)
    assert all(map(torch.equal, shared.buckets, ordinary.buckets)), "no bucket overlaps another"


READS = """
import sys, msgspec
from asyncrl.weights.shared import SharedTensors
from tests.weights.test_shared import bits
print(bits(msgspec.json.decode(sys.stdin.read(), type=SharedTensors).map()))
"""


def bits(found: Mapping[str, Tensor]) -> dict[str, tuple[str, list[int], list[int]]]:
    """Dtype, shape and bytes of each tensor."""
    return {
        name: (str(tensor.dtype), list(tensor.shape), tensor.flatten().view(torch.uint8).tolist())
        for name, tensor in found.items()
    }


@pytest.mark.slow("imports torch in a process of its own")
def test_another_process_reads_every_bit() -> None:
    weights = staged(1)
    place = msgspec.json.encode(SharedTensors.locate(weights.tensors))

    read = subprocess.run([sys.executable, "-c", READS], input=place, capture_output=True, timeout=60, check=True)

    assert read.stdout.decode().strip() == str(bits(weights.tensors))


def test_what_is_written_to_mapped_tensors_reaches_nobody() -> None:
    weights = staged(1)
    place = SharedTensors.locate(weights.tensors)
    for mapped in place.map().values():
        mapped.fill_(7)

    for found in (weights.tensors, place.map()):
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors(1).items())


def test_each_map_has_what_the_owner_wrote_last() -> None:
    weights = staged(1)
    place = SharedTensors.locate(weights.tensors)
    place.map()
    for name, tensor in tensors(2).items():
        weights.tensors[name].copy_(tensor)

    assert all(torch.equal(place.map()[name], tensor) for name, tensor in tensors(2).items())


def test_the_memory_lives_as_long_as_a_tensor_in_it_and_no_longer() -> None:
    before, weights = shared_memory(), staged(1).tensors
    place = SharedTensors.locate(weights)
    last = weights["norm"]

    del weights
    assert len(shared_memory()) == len(before) + 1
    assert torch.equal(place.map()["norm"], last)

    del last
    assert shared_memory() == before
    with pytest.raises(TransferError, match=r"shared weights cannot be mapped: unable to open file .*No such file"):
        place.map()


def test_memory_of_another_size_is_refused() -> None:
    weights = staged(1)
    place = SharedTensors.locate(weights.tensors)
    larger = msgspec.structs.replace(place, bucket=msgspec.structs.replace(place.bucket, num_bytes=1 << 20))

    with pytest.raises(TransferError, match="smaller than the required mapping size"):
        larger.map()


def test_tensors_elsewhere_and_transposed_ones_are_refused() -> None:
    weights, other = staged(1).tensors, staged(2).tensors
    for wrong in ({"stray": torch.zeros(2)}, {**weights, "stray": other["norm"]}, {"stray": weights["embed"].T}):
        with pytest.raises(EngineError, match="from memory that they share, but stray is not in it") as refused:
            SharedTensors.locate(wrong)
        assert not refused.value.retryable


def test_a_failure_to_map_closes_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    before = shared_memory()
    monkeypatch.setattr(os, "getpid", lambda: 2**22 + 1)  # more than the kernel has: no such folder below /proc

    with pytest.raises(TransferError, match="shared weights cannot be mapped"):
        shared_staging(LAYOUT)

    assert shared_memory() == before


def test_a_layout_without_tensors_is_shared_too() -> None:
    assert shared_staging(Layout([], 64)).tensors == {}
