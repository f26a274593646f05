import pytest
import torch

from asyncrl.errors import TransferError
from asyncrl.weights.contents.header import LAYOUT, NOTHING, Header, blank, decode
from asyncrl.weights.contents.layout import Layout
from tests.weights.party import PLAN, SPECS

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "header",
    [
        Header(3, PLAN.hash),
        Header(1 << 40, PLAN.hash, base_version=7, is_checked=True),
        Header(NOTHING, PLAN.hash, is_checked=True),
    ],
)
def test_what_was_said_is_heard(header: Header) -> None:
    assert decode(header.encode(CPU)) == header


def test_a_header_is_as_long_as_its_receiver_expects() -> None:
    encoded, expected = Header(3, PLAN.hash).encode(CPU), blank(CPU)

    assert encoded.shape == expected.shape == (LAYOUT.size,)
    assert encoded.dtype == expected.dtype == torch.uint8


def test_another_version_or_plan_is_refused_before_the_first_bucket() -> None:
    Header(3, PLAN.hash).check(3, PLAN)
    with pytest.raises(TransferError, match="policy_version 4 staged, not 3"):
        Header(4, PLAN.hash).check(3, PLAN)
    with pytest.raises(TransferError, match="different models"):
        Header(3, Layout(SPECS[:1], 64).hash).check(3, PLAN)
