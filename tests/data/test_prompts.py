"""The order of rows: each once per epoch, and the same for ever."""

from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.config.sections.data import Data
from asyncrl.data.prompts import (
    Epochs,
    Interleave,
    PromptStream,
    held_out_stream,
    permutation,
    resolve_steps,
    train_stream,
)
from asyncrl.errors import ConfigError, DataError


def test_the_order_of_an_epoch_never_changes() -> None:
    """Fixed values: a run resumed on another machine or Python must not repeat or skip prompts."""
    assert permutation(8, seed=0, epoch=0) == [0, 5, 3, 7, 1, 6, 4, 2]
    assert permutation(8, seed=0, epoch=1) == [4, 0, 2, 5, 1, 7, 3, 6]
    assert permutation(8, seed=1, epoch=0) == [1, 3, 0, 4, 5, 6, 2, 7]
    assert permutation(8, seed=0, epoch=0, stream=1) == [7, 6, 3, 2, 4, 1, 5, 0]


@given(st.integers(0, 300), st.integers(0, 2**40), st.integers(0, 1000), st.integers(0, 5))
def test_every_row_comes_once_an_epoch(size: int, seed: int, epoch: int, stream: int) -> None:
    assert sorted(permutation(size, seed, epoch, stream)) == list(range(size))


def test_every_order_is_as_likely_as_any_other() -> None:
    """All 6 orders of 3 rows, 6000 seeds: each within 5 standard deviations (29 each) of 1000."""
    seen: dict[tuple[int, ...], int] = {}
    for seed in range(6000):
        order = tuple(permutation(3, seed, 0))
        seen[order] = seen.get(order, 0) + 1

    assert len(seen) == 6
    assert all(abs(times - 1000) < 145 for times in seen.values())


def test_files_of_one_size_have_orders_of_their_own() -> None:
    assert permutation(50, 0, 0, stream=1) != permutation(50, 0, 0, stream=2)


def test_without_a_seed_rows_keep_their_order() -> None:
    epochs = Epochs([4, 7, 9], seed=None)
    assert len(epochs) == 3
    assert [epochs.at(position) for position in range(5)] == [(0, 4), (0, 7), (0, 9), (1, 4), (1, 7)]


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=9, unique=True), st.lists(st.integers(0, 60), max_size=20))
def test_a_position_has_the_same_row_in_any_order_of_calls(rows: list[int], asked: list[int]) -> None:
    in_order = [Epochs(rows, seed=3).at(position) for position in range(61)]
    epochs = Epochs(rows, seed=3)

    assert [epochs.at(position) for position in asked] == [in_order[position] for position in asked]


@pytest.mark.parametrize("seed", [None, 0])
def test_an_epoch_is_every_row_once(seed: int | None) -> None:
    epochs = Epochs([5, 6, 8, 12], seed)
    for epoch in range(4):
        drawn = [epochs.at(4 * epoch + place) for place in range(4)]
        assert {number for number, _ in drawn} == {epoch}
        assert sorted(row for _, row in drawn) == [5, 6, 8, 12]


# ── test interleave ───────────────────────────────────────────────────────────────────────────
# Interleaving: no prefix is off by a whole position, and the file is a function of the position alone.

ratios = st.lists(st.integers(1, 60), min_size=1, max_size=6)


def test_three_to_one_is_three_positions_and_one() -> None:
    assert [Interleave([3, 1]).at(position) for position in range(8)] == [
        (0, 0), (0, 1), (0, 2), (1, 0),
        (0, 3), (0, 4), (0, 5), (1, 1),
    ]  # fmt: skip


def test_two_three_five_is_spread_evenly() -> None:
    """
    By hand: of the files behind their share, the one that would be behind by a whole position soonest.

    Positions by which each file is due again: file 0 at 5 and 10, file 1 at 3⅓, 6⅔ and 10, file 2 at 2, 4, 6, 8, 10.
    """
    assert [Interleave([2, 3, 5]).at(position)[0] for position in range(10)] == [2, 1, 2, 0, 2, 1, 2, 0, 1, 2]


def test_only_the_proportion_matters() -> None:
    once, tenfold = Interleave([2, 3]), Interleave([20, 30])
    assert [once.at(position) for position in range(100)] == [tenfold.at(position) for position in range(100)]


@given(ratios)
def test_in_every_prefix_each_share_is_within_one_of_its_ratio(ratios: list[int]) -> None:
    interleave, total, counts = Interleave(ratios), sum(ratios), [0] * len(ratios)
    for position in range(2 * total + 3):
        file, before = interleave.at(position)
        assert before == counts[file]
        counts[file] += 1
        assert all(abs(counts[i] * total - (position + 1) * ratio) < total for i, ratio in enumerate(ratios))


@given(ratios, st.integers(0, 10**12))
def test_any_position_can_be_computed_by_itself(ratios: list[int], cycles: int) -> None:
    """A cursor far into a run costs what the first one does, and is as exact."""
    interleave, total = Interleave(ratios), sum(ratios)
    file, before = interleave.at(1)
    assert interleave.at(cycles * total + 1)[0] == file
    assert interleave.at(cycles * total + 1)[1] >= before + cycles


# ── test prompts ──────────────────────────────────────────────────────────────────────────────

SIZES = {"a": 5, "b": 3, "c": 11}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of each size; row n of file a has prompt "a" and answer n."""
    folder = tmp_path_factory.mktemp("rows")
    for name, size in SIZES.items():
        rows = [{"prompt": name, "answer": str(n), "data_source": f"source {name}"} for n in range(size)]
        (folder / name).write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    return folder


def data_of(folder: Path, *names: str, **others: Any) -> Data:
    paths = [str(folder / name) for name in names]
    return Data(**{"train": paths if len(paths) > 1 else paths[0], **others})


@pytest.fixture
def data(folder: Path) -> Data:
    return data_of(folder, "a", held_out=str(folder / "a"))


# ── one file ────────────────────────────────────────────────────────────────────────────────


def test_the_order_of_a_file_never_changes(data: Data) -> None:
    """Fixed values: the row numbers of a ledger must mean the same rows in later releases."""
    assert [draw.row for draw in islice(train_stream(data, seed=0).since(0), 10)] == [4, 0, 3, 2, 1, 2, 0, 4, 1, 3]


def test_a_place_is_that_of_the_draw_without_its_prompt(data: Data) -> None:
    stream = train_stream(data, seed=0)

    assert [stream.place(draw.group_id) for draw in islice(stream.since(0), 12)] == [
        (draw.epoch, draw.row) for draw in islice(stream.since(0), 12)
    ]
    with pytest.raises(IndexError, match="outside"):
        stream.place(-1)


def test_epochs_differ_and_cover_the_dataset(data: Data) -> None:
    draws = list(islice(train_stream(data, seed=3).since(0), 15))

    assert [draw.group_id for draw in draws] == list(range(15))
    assert [draw.epoch for draw in draws] == [0] * 5 + [1] * 5 + [2] * 5
    orders = [tuple(draw.row for draw in draws[start : start + 5]) for start in (0, 5, 10)]
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in orders)
    assert len(set(orders)) > 1
    assert all(draw.prompt.answer == str(draw.row) for draw in draws)


def test_prompts_are_those_of_one_epoch_once_or_every_nth(folder: Path) -> None:
    stream = train_stream(data_of(folder, "a", "b", ratios=[1, 3], shuffle=False), seed=0)
    assert [prompt.text for prompt in stream.prompts()] == ["a"] * 5 + ["b"] * 3
    assert [prompt.answer for prompt in stream.prompts(every=2)] == ["0", "2", "4", "0", "2"]
    assert stream.summary.has_texts
    assert not train_stream(data_of(folder, "a", as_chat=True), seed=0).summary.has_texts


def test_without_shuffling_rows_come_in_file_order(data: Data) -> None:
    stream = train_stream(msgspec.structs.replace(data, shuffle=False), seed=3)

    assert [draw.row for draw in islice(stream.since(3), 4)] == [3, 4, 0, 1]


@pytest.mark.parametrize("group_id", [-1, 3, 4])
def test_a_group_outside_a_bounded_stream_is_an_index_error(data: Data, group_id: int) -> None:
    with pytest.raises(IndexError, match="outside the 3 prompts"):
        held_out_stream(data, max_prompts=3).at(group_id)


# ── several files ───────────────────────────────────────────────────────────────────────────


def test_several_files_are_shuffled_as_one_with_rows_numbered_across_files(folder: Path) -> None:
    draws = list(islice(train_stream(data_of(folder, "a", "b"), seed=0).since(0), 8))

    assert sorted(draw.row for draw in draws) == list(range(8))
    assert {draw.epoch for draw in draws} == {0}
    assert all(draw.prompt.text == ("a" if draw.row < 5 else "b") for draw in draws)
    assert [draw.prompt.text for draw in draws] not in (list("aaaaabbb"), list("bbbaaaaa"))


def test_with_ratios_each_file_has_epochs_of_its_own(folder: Path) -> None:
    """Two of the 5 rows of a, then one of the 3 rows of b: 9 groups are one epoch of b and 6 rows of a."""
    draws = list(islice(train_stream(data_of(folder, "a", "b", ratios=[2, 1]), seed=1).since(0), 9))

    of_a = [draw for draw in draws if draw.prompt.text == "a"]
    of_b = [draw for draw in draws if draw.prompt.text == "b"]
    assert [draw.prompt.text for draw in draws] == list("aab" * 3)
    assert [draw.epoch for draw in of_a] == [0, 0, 0, 0, 0, 1]
    assert sorted(draw.row for draw in of_b) == [5, 6, 7], "numbered after the rows of a"
    assert [draw.epoch for draw in of_b] == [0, 0, 0]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(ratios=st.lists(st.integers(1, 7), min_size=3, max_size=3), seed=st.integers(0, 2**40), shuffle=st.booleans())
def test_whatever_the_ratios_a_row_comes_once_an_epoch_of_its_file(
    folder: Path, ratios: list[int], seed: int, shuffle: bool
) -> None:
    stream = train_stream(data_of(folder, "a", "b", "c", ratios=ratios, shuffle=shuffle), seed)
    had: dict[str, list[tuple[int, int]]] = {name: [] for name in SIZES}
    for number, draw in enumerate(islice(stream.since(0), 90), start=1):
        had[draw.prompt.text].append((draw.epoch, int(draw.prompt.answer)))
        shares = [len(had[name]) * sum(ratios) - number * ratio for name, ratio in zip(SIZES, ratios, strict=True)]
        assert all(abs(share) < sum(ratios) for share in shares), "within one of its ratio in every prefix"
    for name, size in SIZES.items():
        for epoch in range(len(had[name]) // size):
            draws = had[name][epoch * size : (epoch + 1) * size]
            assert sorted(draws) == [(epoch, row) for row in range(size)]


@given(asked=st.lists(st.integers(0, 40), max_size=20), ratios=st.sampled_from([[], [1, 2]]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
def test_a_group_id_has_the_same_prompt_in_any_order_of_calls(
    folder: Path, asked: list[int], ratios: list[int]
) -> None:
    """The whole cursor is the next group id: nothing depends on earlier calls."""
    data = data_of(folder, "a", "b", ratios=ratios)
    in_order = list(islice(train_stream(data, 9).since(0), 41))
    stream = train_stream(data, 9)

    assert [stream.at(group_id) for group_id in asked] == [in_order[group_id] for group_id in asked]


# ── some of the rows ────────────────────────────────────────────────────────────────────────


def test_max_rows_are_chosen_by_the_seed_once_for_all_epochs(folder: Path) -> None:
    def rows(seed: int) -> list[list[int]]:
        stream = train_stream(data_of(folder, "c", max_rows=4), seed)
        draws = [draw.row for draw in islice(stream.since(0), 8)]
        return [sorted(draws[:4]), sorted(draws[4:])]

    assert rows(0)[0] == rows(0)[1]
    assert len(set(rows(0)[0])) == 4
    assert len({tuple(rows(seed)[0]) for seed in range(5)}) > 1


def test_without_shuffling_max_rows_are_the_first(folder: Path) -> None:
    stream = train_stream(data_of(folder, "a", "b", max_rows=6, shuffle=False), 0)
    assert [draw.row for draw in islice(stream.since(0), 7)] == [0, 1, 2, 3, 4, 5, 0]


def test_max_rows_above_the_number_of_rows_is_all_of_them(folder: Path) -> None:
    stream = train_stream(data_of(folder, "b", max_rows=100), 0)
    assert sorted(draw.row for draw in islice(stream.since(0), 3)) == [0, 1, 2]


def test_a_file_with_a_share_and_no_row_is_refused(folder: Path) -> None:
    data = data_of(folder, "a", "b", ratios=[1, 1], max_rows=2, shuffle=False)
    with pytest.raises(DataError, match=r"b' has a share in data\.ratios, but no row that is trained on"):
        train_stream(data, 0)


# ── held-out prompts ────────────────────────────────────────────────────────────────────────


def test_held_out_prompts_are_the_first_rows_in_file_order(data: Data) -> None:
    stream = held_out_stream(data, max_prompts=3)

    assert [draw.row for draw in stream.since(0)] == [0, 1, 2]
    assert stream.limit == 3
    assert held_out_stream(data, max_prompts=100).limit == 5
    assert held_out_stream(data, max_prompts=0).limit == 5, "all of them"


def test_several_held_out_files_give_max_prompts_each(folder: Path) -> None:
    data = data_of(folder, "c", held_out=[str(folder / "a"), str(folder / "b")])

    draws = list(held_out_stream(data, max_prompts=2).since(0))

    assert [(draw.prompt.text, draw.prompt.answer) for draw in draws] == [
        ("a", "0"),
        ("a", "1"),
        ("b", "0"),
        ("b", "1"),
    ]
    every = held_out_stream(data, max_prompts=0)
    assert every.limit == len(every.summary.usable), "0 takes all of each"


# ── rows that cannot be used ────────────────────────────────────────────────────────────────


@pytest.fixture
def with_bad_rows(tmp_path: Path) -> Data:
    path = tmp_path / "rows.jsonl"
    good, bad = '{"prompt": "a", "answer": "1"}\n', '{"prompt": "b", "answer": null}\n'
    path.write_text(good + bad + good + bad + good)
    return Data(train=str(path), held_out=str(path))


def test_a_bad_row_is_refused_before_the_first_prompt(with_bad_rows: Data) -> None:
    with pytest.raises(DataError) as caught:
        train_stream(with_bad_rows, seed=0)

    assert str(caught.value) == (
        f"{with_bad_rows.train} line 2: 'answer' must be text or a number, got null (and 1 more of 5 rows); repair it, "
        f"or leave such rows out with data.on_bad_row = 'skip'"
    )


def test_skipped_rows_are_counted_and_keep_their_numbers(with_bad_rows: Data) -> None:
    data = msgspec.structs.replace(with_bad_rows, on_bad_row="skip")

    train, held_out = train_stream(data, seed=0), held_out_stream(data, max_prompts=2)

    assert sorted(draw.row for draw in islice(train.since(0), 3)) == [0, 2, 4]
    assert train.at(3).epoch == 1
    assert [draw.row for draw in held_out.since(0)] == [0, 2]
    assert [row.place for row in train.summary.bad] == [f"{data.train} line 2", f"{data.train} line 4"]


def test_a_dataset_of_bad_rows_alone_is_refused_even_with_skip(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "", "answer": "1"}\n')

    with pytest.raises(DataError, match=r"none of the 1 rows can be used; the first: .* line 1: 'prompt' is empty"):
        train_stream(Data(train=str(tmp_path / "rows.jsonl"), on_bad_row="skip"), seed=0)


def test_a_missing_column_is_refused_before_any_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "a", "answer": "1"}\n')

    with pytest.raises(DataError, match="has no column 'prompt': it has question, answer"):
        train_stream(Data(train=str(path)), seed=0)


def test_the_summary_has_data_sources_and_chats(folder: Path, tmp_path: Path) -> None:
    stream: PromptStream = train_stream(data_of(folder, "a", "b"), 0)
    assert (stream.summary.data_sources, stream.summary.has_chats) == (frozenset({"source a", "source b"}), False)

    (tmp_path / "chats").write_text('{"prompt": [{"role": "user", "content": "?"}], "answer": 1}')
    assert train_stream(Data(train=str(tmp_path / "chats")), 0).summary.has_chats


# ── test run length ───────────────────────────────────────────────────────────────────────────
# Epochs become steps by the rows that are trained on.


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Twenty rows, the last of which has no prompt."""
    path = tmp_path / "train.jsonl"
    lines = [{"prompt": "1 + 1" if number < 19 else "", "answer": "2"} for number in range(20)]
    path.write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    return path


def lasting(epochs: float, **data: Any) -> Config:
    return decode({"run": {"epochs": epochs}, "model": {"path": "m"}, "data": data, "schedule": {"groups_per_step": 2}})


def test_only_usable_rows_count(rows: Path) -> None:
    assert resolve_steps(lasting(2, train=str(rows), on_bad_row="skip")).run.steps == 19


def test_only_rows_that_are_trained_on_count(rows: Path) -> None:
    assert resolve_steps(lasting(3, train=str(rows), on_bad_row="skip", max_rows=4)).run.steps == 6


def test_without_epochs_no_file_is_read() -> None:
    config = decode({"model": {"path": "m"}, "data": {"train": "absent"}})
    assert resolve_steps(config) is config


# ── held out of the training data ─────────────────────────────────────────────────────────────


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.integers(0, 30), min_size=2), st.data())
def test_prompts_are_held_out_with_all_their_repetitions_and_evaluated_once(
    tmp_path: Path, numbers: list[int], drawn: st.DataObject
) -> None:
    different = len(set(numbers))
    hold_out = drawn.draw(st.integers(1, max(different - 1, 1)))
    path = tmp_path / "data.jsonl"
    path.write_text("".join(f'{{"prompt": "{n}?", "answer": "{n}"}}\n' for n in numbers))
    data = Data(train=str(path), hold_out=hold_out)
    if different == 1:
        with pytest.raises(DataError, match=r"data\.hold_out is 1, and data\.train has 1 different prompts"):
            train_stream(data, 0)
        return
    held_out = [prompt.text for prompt in held_out_stream(data, 0).prompts()]
    trained = [prompt.text for prompt in train_stream(data, 0).prompts()]
    assert (len(held_out), len(set(held_out))) == (hold_out, hold_out)
    assert sorted(trained) == sorted(f"{n}?" for n in numbers if f"{n}?" not in held_out)
    path.write_text("".join(f'{{"prompt": "{n}?", "answer": "{n}"}}\n' for n in reversed(numbers)))
    assert {prompt.text for prompt in held_out_stream(data, 0).prompts()} == set(held_out), "whatever their order"


def test_a_file_and_a_number_of_held_out_prompts_are_refused_together(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.held_out names 'b'.*data\.hold_out takes 3 prompts.*remove one"):
        Data(train="a", held_out="b", hold_out=3).check()
