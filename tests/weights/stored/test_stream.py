"""A version in parts comes back bit for bit; parts that do not fit the layout are refused."""

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import TransferError
from asyncrl.weights.contents.layout import Layout, TensorSpec
from asyncrl.weights.staging import Staging
from asyncrl.weights.stored import stream
from asyncrl.weights.stored.stream import (
    COUNT,
    LENGTH,
    Reader,
    Words,
    apply_delta,
    decode_whole,
    encode_delta,
    pack,
    unpack,
    write,
)

SPECS = [
    TensorSpec(name="embed", shape=(50, 3), dtype="float32"),
    TensorSpec(name="norm", shape=(7,), dtype="bfloat16"),
    TensorSpec(name="head", shape=(400,), dtype="bfloat16"),
    TensorSpec(name="flag", shape=(), dtype="uint8"),
    TensorSpec(name="empty", shape=(0, 4), dtype="float32"),
]
LAYOUT = Layout(SPECS, 64)


@pytest.fixture(autouse=True)
def _small_blocks_and_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "BLOCK_ITEMS", 32)
    monkeypatch.setattr(stream, "PART_BYTES", 20)


def staging(seed: int, share: float = 1.0) -> Staging:
    """Random bytes; a ``share`` of them differs from those of seed 0."""
    made, generator = Staging(LAYOUT), torch.Generator().manual_seed(seed)
    base = torch.Generator().manual_seed(0)
    for bucket in made.buckets:
        bucket.copy_(torch.randint(256, bucket.shape, generator=base, dtype=torch.uint8))
        other = torch.randint(256, bucket.shape, generator=generator, dtype=torch.uint8)
        bucket.copy_(torch.where(torch.rand(bucket.shape, generator=generator) < share, other, bucket))
    return made


def equal(one: Staging, other: Staging) -> bool:
    return all(map(torch.equal, one.buckets, other.buckets))


@given(st.integers(1, 1000), st.sampled_from([0.0, 0.03, 1.0]))
def test_a_delta_in_parts_makes_the_new_version_of_the_base(seed: int, share: float) -> None:
    new, held = staging(seed, share), staging(0, 0.0)
    reader = Reader(held, is_delta=True)

    for part in write(new, staging(0, 0.0)):
        reader.read(memoryview(part))

    assert reader.is_complete
    assert equal(held, new)


def test_an_anchor_in_parts_needs_no_base() -> None:
    new, held = staging(3), Staging(LAYOUT)
    reader = Reader(held, is_delta=False)
    parts = list(write(new, None))

    for part in parts:
        assert not reader.is_complete
        reader.read(memoryview(part))

    assert len(parts) > 10
    assert max(map(len, parts)) <= 20
    assert equal(held, new)


def test_an_empty_layout_is_one_empty_part() -> None:
    nothing = Staging(Layout([], 64))
    reader = Reader(nothing, is_delta=False)

    assert list(write(nothing, None)) == [b""]
    assert reader.is_complete


def test_a_stream_that_ends_early_is_not_complete() -> None:
    reader = Reader(Staging(LAYOUT), is_delta=False)
    *parts, _ = write(staging(1), None)
    for part in parts:
        reader.read(memoryview(part))
    assert not reader.is_complete


def test_blocks_beyond_the_layout_are_refused() -> None:
    reader = Reader(Staging(LAYOUT), is_delta=False)
    for part in write(staging(1), None):
        reader.read(memoryview(part))
    with pytest.raises(TransferError, match="more blocks"):
        reader.read(memoryview(b"\x01\x00\x00\x00x"))


def test_an_anchor_read_as_a_delta_is_refused() -> None:
    whole = b"".join(write(staging(1), None))
    with pytest.raises(TransferError, match="damaged"):
        Reader(Staging(LAYOUT), is_delta=True).read(memoryview(whole))


# ── blocks ──────────────────────────────────────────────────────────────────────────────────────
# A block comes back bit for bit, whatever its elements are and however many of them changed.


DTYPES = ("<u1", "<u2", "<u4", "<u8")
NAN_WITH_PAYLOAD, MINUS_ZERO, INFINITY = 0x7FC5, 0x8000, 0x7F80
"""Bits of bfloat16 numbers."""


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Words, Words]:
    """A base block and a new block of one dtype."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    bits = dtype.itemsize * 8
    base = np.array(draw(st.lists(st.integers(0, 2**bits - 1), max_size=80)), dtype)
    new = base.copy()
    if len(base):
        for place in draw(st.sets(st.integers(0, len(base) - 1))):
            new[place] = draw(st.integers(0, 2**bits - 1))
    return base, new


@given(pairs())
def test_a_delta_makes_the_new_block_of_the_base(pair: tuple[Words, Words]) -> None:
    base, new = pair

    apply_delta(memoryview(encode_delta(new, base)), base)

    assert base.tobytes() == new.tobytes()


@given(pairs())
def test_a_whole_block_needs_no_base(pair: tuple[Words, Words]) -> None:
    other, new = pair

    decode_whole(memoryview(pack(new)), other)

    assert other.tobytes() == new.tobytes()


def test_payloads_of_nans_and_the_sign_of_zero_are_kept() -> None:
    base = np.array([0, 0x7FC0, 0x3F80, MINUS_ZERO], "<u2")
    new = np.array([MINUS_ZERO, NAN_WITH_PAYLOAD, INFINITY, 0], "<u2")

    apply_delta(memoryview(encode_delta(new, base)), base)

    assert base.tolist() == new.tolist()


def test_a_delta_without_changes_is_a_few_bytes() -> None:
    words = np.arange(1_000_000, dtype="<u2")
    assert len(encode_delta(words, words.copy())) < 100


def test_steps_to_a_neighbour_take_about_a_bit_beside_their_position() -> None:
    dice = np.random.default_rng(0)
    base = dice.integers(0, 1 << 16, 1_000_000).astype("<u2")
    changed = np.flatnonzero(dice.random(len(base)) < 0.029)
    new = base.copy()
    new[changed] += dice.choice([1, 0xFFFF], len(changed)).astype("<u2")

    assert len(encode_delta(new, base)) < 0.015 * base.nbytes


def test_a_wide_gap_is_kept() -> None:
    base = np.zeros(1 << 20, "<u1")
    new = base.copy()
    new[-1] = 7

    apply_delta(memoryview(encode_delta(new, base)), base)

    assert base.tolist() == new.tolist()


@pytest.mark.parametrize("size", [3, 5])
def test_a_delta_of_a_longer_block_is_refused_and_changes_nothing(size: int) -> None:
    body = encode_delta(np.full(6, 1, "<u2"), np.zeros(6, "<u2"))
    words = np.zeros(size, "<u2")

    with pytest.raises(TransferError, match="damaged"):
        apply_delta(memoryview(body), words)

    assert not words.any()


def test_a_position_beyond_the_block_is_refused() -> None:
    base, new = np.zeros(100, "<u2"), np.zeros(100, "<u2")
    new[90] = 1
    with pytest.raises(TransferError, match="does not fit its block"):
        apply_delta(memoryview(encode_delta(new, base)), np.zeros(50, "<u2"))


def test_a_whole_block_of_another_size_is_refused() -> None:
    with pytest.raises(TransferError, match="damaged"):
        decode_whole(memoryview(pack(np.ones(6, "<u2"))), np.zeros(5, "<u2"))


def test_bytes_after_a_block_are_refused() -> None:
    words = np.ones(6, "<u2")
    with pytest.raises(TransferError, match="2 bytes follow"):
        decode_whole(memoryview(pack(words) + b"xx"), words)
    with pytest.raises(TransferError, match="does not fit"):
        apply_delta(memoryview(encode_delta(words, words) + b"xx"), words)


def test_an_absurd_count_is_refused() -> None:
    with pytest.raises(TransferError, match="4000000000 changes"):
        apply_delta(memoryview(COUNT.pack(4_000_000_000)), np.zeros(5, "<u2"))


# ── test planes ───────────────────────────────────────────────────────────────────────────────
# Numbers come back as they were; what is not a pack of so many numbers is refused before memory is taken.


@given(st.sampled_from(DTYPES), st.lists(st.integers(0, 255), max_size=300), st.binary(max_size=5))
def test_numbers_come_back_with_the_bytes_after_them(dtype: str, low: list[int], after: bytes) -> None:
    words = np.array(low, dtype) << (8 * (np.dtype(dtype).itemsize - 1))

    found, rest = unpack(memoryview(pack(words) + after), len(words), np.dtype(dtype))

    assert found.tolist() == words.tolist()
    assert bytes(rest) == after


def test_a_plane_of_zeros_takes_its_length_alone() -> None:
    assert len(pack(np.zeros(1_000_000, "<u8"))) == 8 * LENGTH.size


def test_random_gaps_take_little_more_than_their_entropy() -> None:
    changed = 0.03
    gaps = np.random.default_rng(0).geometric(changed, 300_000).astype("<u4") - 1
    entropy = -(changed * np.log2(changed) + (1 - changed) * np.log2(1 - changed)) / changed

    assert len(pack(gaps)) * 8 / len(gaps) < 1.02 * entropy


@pytest.mark.parametrize("num", [9, 11])
def test_another_count_is_refused(num: int) -> None:
    packed = pack(np.arange(10, dtype="<u2"))
    with pytest.raises(TransferError, match=f"has not {num} bytes"):
        unpack(memoryview(packed), num, np.dtype("<u2"))


def test_a_plane_that_claims_to_be_huge_is_refused() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(50_000_000))
    with pytest.raises(TransferError, match="has not 10 bytes"):
        unpack(memoryview(LENGTH.pack(len(bomb)) + bomb), 10, np.dtype("<u1"))


@given(st.integers(0, 60))
def test_a_cut_pack_is_refused(end: int) -> None:
    packed = pack(np.arange(100, dtype="<u4"))
    with pytest.raises(TransferError, match="damaged"):
        unpack(memoryview(packed[:end]), 100, np.dtype("<u4"))


def test_bytes_that_are_not_compressed_are_refused() -> None:
    with pytest.raises(TransferError, match="damaged"):
        unpack(memoryview(LENGTH.pack(4) + b"abcd"), 10, np.dtype("<u1"))
