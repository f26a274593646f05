"""A version in parts comes back bit for bit; parts that do not fit the layout are refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import TransferError
from asyncrl.weights.contents.layout import Layout, TensorSpec
from asyncrl.weights.staging import Staging
from asyncrl.weights.stored import stream
from asyncrl.weights.stored.stream import Reader, write

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
