"""The window on the CPU; transfers from a device through it are in `tests.weights.groups`."""

import torch

from asyncrl.weights.contents.layout import Layout, TensorSpec
from asyncrl.weights.staging import Staging
from asyncrl.weights.window import Window

CPU = torch.device("cpu")
LAYOUT = Layout([TensorSpec(name=f"w{i}", shape=(8 + i,), dtype="float32") for i in range(5)], 40)


def filled() -> Staging:
    staging = Staging(LAYOUT, CPU)
    for number, tensor in enumerate(staging.tensors.values()):
        tensor.fill_(number)
    return staging


def test_buckets_come_in_order_and_are_whole_until_the_next_is_asked_for() -> None:
    staging, window = filled(), Window(LAYOUT, CPU)
    seen = [bucket.clone() for bucket in window.buckets(staging)]
    assert len(seen) == len(LAYOUT.buckets) == 5
    assert all(torch.equal(*pair) for pair in zip(seen, staging.buckets, strict=True))


def test_no_more_than_two_buckets_of_memory_are_used() -> None:
    found = {bucket.untyped_storage().data_ptr() for bucket in Window(LAYOUT, CPU).buckets(filled())}
    sizes = {bucket.untyped_storage().nbytes() for bucket in Window(LAYOUT, CPU).buckets(filled())}
    assert len(found) == 2
    assert sizes == {max(bucket.num_bytes for bucket in LAYOUT.buckets)}


def test_a_layout_without_tensors_has_no_buckets() -> None:
    empty = Layout([], 40)
    assert list(Window(empty, CPU).buckets(Staging(empty, CPU))) == []
