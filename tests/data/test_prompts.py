from itertools import islice
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.config import Data
from asyncrl.data.prompts import PromptStream, held_out_stream, permutation, train_stream
from asyncrl.errors import DataError


class SevenRows:
    path = Path("seven rows")
    columns = ["prompt", "answer"]

    def __len__(self) -> int:
        return 7

    def __getitem__(self, row: int) -> dict[str, str]:
        return {"prompt": f"p{row}", "answer": str(row)}

    def place(self, row: int) -> str:
        return f"row {row}"


@pytest.fixture
def data(tmp_path: Path) -> Data:
    path = tmp_path / "five.jsonl"
    path.write_bytes(b"\n".join(msgspec.json.encode({"prompt": f"p{n}", "answer": str(n)}) for n in range(5)))
    return Data(train=str(path), held_out=str(path))


def test_the_order_of_an_epoch_never_changes() -> None:
    """Written down: a run resumed on another machine or Python must not ask prompts twice, or never."""
    assert permutation(8, seed=0, epoch=0) == [0, 5, 3, 7, 1, 6, 4, 2]
    assert permutation(8, seed=0, epoch=1) == [4, 0, 2, 5, 1, 7, 3, 6]
    assert permutation(8, seed=1, epoch=0) == [1, 3, 0, 4, 5, 6, 2, 7]


@given(st.integers(0, 300), st.integers(0, 2**40), st.integers(0, 1000))
def test_every_row_comes_once_an_epoch(size: int, seed: int, epoch: int) -> None:
    assert sorted(permutation(size, seed, epoch)) == list(range(size))


def test_every_order_is_as_likely_as_any_other() -> None:
    """All 6 orders of 3 rows, 6000 seeds: each within 5 standard deviations (29 each) of 1000."""
    seen: dict[tuple[int, ...], int] = {}
    for seed in range(6000):
        order = tuple(permutation(3, seed, 0))
        seen[order] = seen.get(order, 0) + 1

    assert len(seen) == 6
    assert all(abs(times - 1000) < 145 for times in seen.values())


def test_epochs_differ_and_cover_the_dataset(data: Data) -> None:
    draws = list(islice(train_stream(data, seed=3).since(0), 15))

    assert [draw.group_id for draw in draws] == list(range(15))
    assert [draw.epoch for draw in draws] == [0] * 5 + [1] * 5 + [2] * 5
    orders = [tuple(draw.row for draw in draws[start : start + 5]) for start in (0, 5, 10)]
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in orders)
    assert len(set(orders)) > 1
    assert all(draw.prompt.answer == str(draw.row) for draw in draws)


@given(st.lists(st.integers(0, 40), max_size=20))
def test_a_stream_asked_anywhere_gives_what_it_gives_in_order(asked: list[int]) -> None:
    """The whole cursor is the next group id: nothing depends on what was asked before."""
    data = Data(train="seven rows")
    in_order = list(islice(PromptStream(SevenRows(), data, 9).since(0), 41))
    stream = PromptStream(SevenRows(), data, 9)

    assert [stream.at(group_id) for group_id in asked] == [in_order[group_id] for group_id in asked]


def test_without_shuffling_rows_come_in_file_order(data: Data) -> None:
    stream = train_stream(msgspec.structs.replace(data, shuffle=False), seed=3)

    assert [draw.row for draw in islice(stream.since(3), 4)] == [3, 4, 0, 1]


def test_held_out_prompts_are_the_first_rows_in_file_order(data: Data) -> None:
    stream = held_out_stream(data, max_prompts=3)

    assert [draw.row for draw in stream.since(0)] == [0, 1, 2]
    assert stream.limit == 3
    assert held_out_stream(data, max_prompts=100).limit == 5


@pytest.mark.parametrize("group_id", [-1, 3, 4])
def test_a_group_outside_a_bounded_stream_is_an_index_error(data: Data, group_id: int) -> None:
    with pytest.raises(IndexError, match="outside the 3 prompts"):
        held_out_stream(data, max_prompts=3).at(group_id)


def test_a_bad_row_is_told_before_the_first_prompt_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a", "answer": "1"}\n{"prompt": "b", "answer": null}\n')

    with pytest.raises(DataError, match=r"rows\.jsonl line 2: 'answer' must be text or a number, got null"):
        train_stream(Data(train=str(path)), seed=0)


def test_a_missing_column_is_told_before_any_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "a", "answer": "1"}\n')

    with pytest.raises(DataError, match="has no column 'prompt': it has question, answer"):
        train_stream(Data(train=str(path)), seed=0)
