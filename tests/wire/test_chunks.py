"""Lists are cut by bytes, in order and without loss, and a batch of the largest verdicts fits into a message."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.messages.reward import ScoredItem
from asyncrl.messages.spool import Put, PutItem, SpoolRef
from asyncrl.messages.trainer import ScoredTrajectory
from asyncrl.messages.trajectory import TrajectorySummary, Unit
from asyncrl.wire.files import (
    CHUNK_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_VERDICT_BYTES,
    cut_by_bytes,
    max_verdict_bytes,
    put_bytes,
    verdict_bytes,
)
from asyncrl.wire.session import Limits

SUMMARY = TrajectorySummary(66_000, 1000, 3, 4, 2, "stop")


@given(st.lists(st.integers(0, 30), max_size=50), st.integers(1, 40))
def test_chunks_have_every_item_in_order_and_no_more_bytes_than_allowed(sizes: list[int], max_bytes: int) -> None:
    chunks = list(cut_by_bytes(sizes, int, max_bytes))
    assert [size for chunk in chunks for size in chunk] == sizes
    assert all(sum(chunk) <= max_bytes or len(chunk) == 1 for chunk in chunks)
    assert all(sum(one) + two[0] > max_bytes for one, two in pairwise(chunks))


def test_hundreds_of_long_trajectories_make_messages_that_fit_into_a_frame() -> None:
    payload = memoryview(bytes(66_000 * 8))
    items = [PutItem(Unit(index, 0), 1, SUMMARY, payload) for index in range(512)]
    chunks = list(cut_by_bytes(items, put_bytes))
    assert len(chunks) == -(-512 // (CHUNK_BYTES // payload.nbytes))
    assert all(len(msgspec.msgpack.encode(Put("r", "1", chunk))) < Limits().frame for chunk in chunks)


def test_the_largest_payload_fits_into_a_message() -> None:
    put = Put("r" * 100, "1", [PutItem(Unit(0, 0), 1, SUMMARY, memoryview(bytes(MAX_PAYLOAD_BYTES)))])
    assert len(msgspec.msgpack.encode(put)) < Limits().message


@pytest.mark.parametrize("name", ["m", "é", "名", "😀" * 40])
def test_a_verdict_is_at_least_as_large_as_its_encoding(name: str) -> None:
    metrics = {f"{name}{number}": number / 7 for number in range(1000)}
    item = ScoredItem(Unit(0, 0), 1.0, metrics, 7, name * 20)
    assert verdict_bytes(item) + 64 >= len(msgspec.msgpack.encode(item))


@pytest.mark.parametrize("num", [1, 512, 20_000])
def test_a_batch_of_the_largest_verdicts_fits_into_a_message(num: int) -> None:
    metric = {f"{0:09}": 0.5}
    num_metrics = max_verdict_bytes(num) // verdict_bytes(ScoredItem(Unit(0, 0), 1.0, metric))
    metrics = {f"{number:09}": 0.5 for number in range(num_metrics)}
    ref = SpoolRef("spool-0", 12, 1 << 27, 540_000, 1 << 31)
    one = ScoredTrajectory(Unit(1 << 40, 7), ref, 0.5, metrics, SUMMARY)
    assert num * len(msgspec.msgpack.encode(one)) < Limits().message


def test_ten_thousand_metrics_are_no_more_than_a_verdict_may_have() -> None:
    metrics = {f"rubric/item_{number}": 0.5 for number in range(10_000)}
    assert verdict_bytes(ScoredItem(Unit(0, 0), 1.0, metrics)) < MAX_VERDICT_BYTES
