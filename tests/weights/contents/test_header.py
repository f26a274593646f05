import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from asyncrl.errors import TransferError
from asyncrl.weights.contents import header
from asyncrl.weights.contents.header import (
    CPU_WORDS,
    HEADER_FORMAT,
    MODULUS,
    NO_VERSION,
    Checksum,
    Header,
    Q,
    blank,
    decode,
)
from asyncrl.weights.contents.layout import Layout
from tests.weights.party import LAYOUT, SPECS

SUM = Checksum(torch.device("cpu"))


def buffer(raw: bytes) -> Tensor:
    return torch.tensor(list(raw), dtype=torch.uint8)


def random(num_bytes: int) -> Tensor:
    return torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(num_bytes))


def by_hand(raw: bytes) -> int:
    """The definition, in Python's integers."""
    words = [int.from_bytes(raw[i : i + 4].ljust(4, b"\0"), "little", signed=True) for i in range(0, len(raw), 4)]
    total = sum(word * Q ** (i + 1) for i, word in enumerate(words)) % MODULUS
    return total - MODULUS if total >= MODULUS // 2 else total


@given(st.binary(max_size=64))
def test_it_is_the_sum_of_words_times_powers(raw: bytes) -> None:
    assert SUM(buffer(raw)) == by_hand(raw)


@pytest.mark.parametrize("num_bytes", [4 * CPU_WORDS - 1, 4 * CPU_WORDS, 4 * CPU_WORDS + 5, 9 * CPU_WORDS + 2])
def test_the_block_size_does_not_change_the_sum(num_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU and an accelerator use different block sizes and must agree."""
    raw = random(num_bytes)
    monkeypatch.setattr(header, "CPU_WORDS", 1000)

    assert Checksum(torch.device("cpu"))(raw) == SUM(raw)


@given(st.data())
def test_a_change_within_one_word_is_found(data: st.DataObject) -> None:
    raw = random(4 * 200 + 3)
    where = data.draw(st.integers(0, 200))
    changed = raw.clone()
    changed[4 * where : 4 * where + 4] ^= buffer(data.draw(st.binary(min_size=4, max_size=4)))[: len(raw) - 4 * where]

    assert (SUM(changed) == SUM(raw)) == torch.equal(changed, raw)


@given(st.integers(0, 199), st.integers(0, 199))
def test_words_that_changed_places_are_found(first: int, second: int) -> None:
    words = random(4 * 200).view(torch.int32)
    swapped = words.clone()
    swapped[[first, second]] = words[[second, first]]

    assert (SUM(swapped.view(torch.uint8)) == SUM(words.view(torch.uint8))) == torch.equal(words, swapped)


def test_signs_flipped_in_two_places_are_found() -> None:
    """A plain sum of 64-bit words times odd numbers loses pairs of highest bits."""
    for dtype in (torch.float32, torch.bfloat16):
        weights = torch.randn(3 * CPU_WORDS).to(dtype)
        flipped = weights.clone()
        flipped[[7, 3 * CPU_WORDS - 1]] *= -1

        assert SUM(flipped.view(torch.uint8)) != SUM(weights.view(torch.uint8))


# ── test header ───────────────────────────────────────────────────────────────────────────────

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
