import pytest
import torch

from asyncrl.errors import TransferError
from asyncrl.weights.contents.header import HEADER_FORMAT, NO_VERSION, Header, blank, decode
from asyncrl.weights.contents.layout import Layout
from tests.weights.party import LAYOUT, SPECS

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "header",
    [
        Header(3, LAYOUT.hash),
        Header(1 << 40, LAYOUT.hash, base_version=7, is_checked=True),
        Header(NO_VERSION, LAYOUT.hash, is_checked=True),
    ],
)
def test_decoding_inverts_encoding(header: Header) -> None:
    assert decode(header.encode(CPU)) == header


def test_a_header_is_as_long_as_its_receiver_expects() -> None:
    encoded, expected = Header(3, LAYOUT.hash).encode(CPU), blank(CPU)

    assert encoded.shape == expected.shape == (HEADER_FORMAT.size,)
    assert encoded.dtype == expected.dtype == torch.uint8


def test_another_version_or_layout_is_refused_before_the_first_bucket() -> None:
    Header(3, LAYOUT.hash).check(3, LAYOUT)
    with pytest.raises(TransferError, match="version 4 staged, not 3"):
        Header(4, LAYOUT.hash).check(3, LAYOUT)
    with pytest.raises(TransferError, match="different models"):
        Header(3, Layout(SPECS[:1], 64).hash).check(3, LAYOUT)
