"""The double buffer on the CPU; transfers from a device through it are in `tests.weights.groups`."""

import torch

from asyncrl.weights.contents.layout import Layout, TensorSpec
from asyncrl.weights.publish import DoubleBuffer
from asyncrl.weights.staging import Staging

CPU = torch.device("cpu")
LAYOUT = Layout([TensorSpec(name=f"w{i}", shape=(8 + i,), dtype="float32") for i in range(5)], 40)


def filled() -> Staging:
    staging = Staging(LAYOUT, CPU)
    for number, tensor in enumerate(staging.tensors.values()):
        tensor.fill_(number)
    return staging


def test_buckets_come_in_order_and_are_whole_until_the_next_is_asked_for() -> None:
    staging, double_buffer = filled(), DoubleBuffer(LAYOUT, CPU)
    seen = [bucket.clone() for bucket in double_buffer.buckets(staging)]
    assert len(seen) == len(LAYOUT.buckets) == 5
    assert all(torch.equal(*pair) for pair in zip(seen, staging.buckets, strict=True))


def test_no_more_than_two_buckets_of_memory_are_used() -> None:
    found = {bucket.untyped_storage().data_ptr() for bucket in DoubleBuffer(LAYOUT, CPU).buckets(filled())}
    sizes = {bucket.untyped_storage().nbytes() for bucket in DoubleBuffer(LAYOUT, CPU).buckets(filled())}
    assert len(found) == 2
    assert sizes == {max(bucket.num_bytes for bucket in LAYOUT.buckets)}


def test_what_is_put_into_the_buffers_is_in_the_staging_at_the_end() -> None:
    sent, received, double_buffer = filled(), Staging(LAYOUT, CPU), DoubleBuffer(LAYOUT, CPU)
    buffers = set()
    for bucket, buffer in zip(sent.buckets, double_buffer.receive_into(received), strict=True):
        buffer.copy_(bucket)
        buffers.add(buffer.untyped_storage().data_ptr())
    assert all(torch.equal(*pair) for pair in zip(received.buckets, sent.buckets, strict=True))
    assert len(buffers) == 2


def test_a_delta_changes_what_the_staging_holds() -> None:
    received, double_buffer = filled(), DoubleBuffer(LAYOUT, CPU)
    for buffer in double_buffer.receive_into(received, is_delta=True):
        buffer[0] = 255
    expected = filled()
    for bucket in expected.buckets:
        bucket[0] = 255
    assert all(torch.equal(*pair) for pair in zip(received.buckets, expected.buckets, strict=True))


def test_a_layout_without_tensors_has_no_buckets() -> None:
    empty = Layout([], 40)
    assert list(DoubleBuffer(empty, CPU).buckets(Staging(empty, CPU))) == []
    assert list(DoubleBuffer(empty, CPU).receive_into(Staging(empty, CPU))) == []
