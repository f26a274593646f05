import pytest
import torch

from asyncrl.errors import TransferError
from asyncrl.weights.plan import Plan
from asyncrl.weights.staging import HEADER, Staging, check_header, header

from .party import PLAN, SPECS


def test_views_have_the_plans_shapes_and_dtypes_and_share_the_buffers() -> None:
    staging = Staging(PLAN)
    for buffer in staging.buckets:
        buffer.zero_()
    for spec in SPECS:
        view = staging.tensors[spec.name]
        assert (tuple(view.shape), str(view.dtype)) == (spec.shape, f"torch.{spec.dtype}")
        view.fill_(1)

    assert sum(int(buffer.count_nonzero()) for buffer in staging.buckets) == 2 * (15 + 7 + 1)  # 1.0 has two bytes not 0


def test_a_header_is_as_long_as_its_receiver_expects() -> None:
    assert header(3, PLAN).shape == (HEADER.size,)
    assert header(3, PLAN).dtype == torch.uint8
    check_header(header(3, PLAN), 3, PLAN)


def test_another_version_or_plan_is_refused_before_the_first_bucket() -> None:
    with pytest.raises(TransferError, match="policy_version 4 staged, not 3"):
        check_header(header(4, PLAN), 3, PLAN)
    with pytest.raises(TransferError, match="different models"):
        check_header(header(3, Plan(SPECS[:1], 64)), 3, PLAN)
