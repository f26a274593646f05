from typing import Any

import pytest
import torch

from asyncrl.weights.staging import Staging
from tests.weights.party import LAYOUT, SPECS

CPU = torch.device("cpu")


def test_views_have_the_layouts_shapes_and_dtypes_and_share_the_buffers() -> None:
    staging = Staging(LAYOUT, CPU)
    for spec in SPECS:
        view = staging.tensors[spec.name]
        assert (tuple(view.shape), str(view.dtype)) == (spec.shape, f"torch.{spec.dtype}")
        view.fill_(1)

    assert sum(int(buffer.count_nonzero()) for buffer in staging.buckets) == 2 * (15 + 7 + 1)  # 1.0 has two bytes not 0


def test_the_views_of_a_bucket_are_the_layouts_tensors() -> None:
    staging = Staging(LAYOUT, CPU)

    assert [list(views) for views in staging.views] == [
        [s.spec.name for s in bucket.slots] for bucket in LAYOUT.buckets
    ]
    assert [len(buffer) for buffer in staging.buckets] == [bucket.num_bytes for bucket in LAYOUT.buckets]


def test_buffers_that_are_given_are_used_and_no_others() -> None:
    given = [torch.zeros(bucket.num_bytes, dtype=torch.uint8) for bucket in LAYOUT.buckets]
    staging = Staging(LAYOUT, CPU, buckets=given)

    assert [buffer.data_ptr() for buffer in staging.buckets] == [buffer.data_ptr() for buffer in given]
    staging.tensors["norm"].fill_(1)
    assert sum(int(buffer.count_nonzero()) for buffer in given) == 2 * 7


def test_a_staging_of_one_bucket_allocates_no_more_than_the_largest() -> None:
    staging = Staging(LAYOUT, CPU, holds="bucket")

    assert len({buffer.untyped_storage().data_ptr() for buffer in staging.buckets}) == 1
    assert staging.buckets[0].untyped_storage().nbytes() == max(bucket.num_bytes for bucket in LAYOUT.buckets)
    for bucket, views in zip(LAYOUT.buckets, staging.views, strict=True):
        assert list(views) == [slot.spec.name for slot in bucket.slots]


@pytest.mark.parametrize(("device", "beside", "is_locked"), [("cpu", "cuda:0", True), ("cpu", "cpu", False)])
def test_host_buffers_beside_a_device_are_page_locked(
    monkeypatch: pytest.MonkeyPatch, device: str, beside: str, is_locked: bool
) -> None:
    locked = []

    def zeros(*args: int, pin_memory: bool, **options: Any) -> torch.Tensor:
        locked.append(pin_memory)
        return torch.empty(*args, **options)

    monkeypatch.setattr(torch, "zeros", zeros)
    Staging(LAYOUT, torch.device(device), beside=torch.device(beside))
    assert set(locked) == {is_locked}
