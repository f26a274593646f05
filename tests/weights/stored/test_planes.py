"""Numbers come back as they were; what is not a pack of so many numbers is refused before memory is taken."""

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import TransferError
from asyncrl.weights.stored.planes import LENGTH, pack, unpack

DTYPES = ("<u1", "<u2", "<u4", "<u8")


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
