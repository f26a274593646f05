"""Rows of CSV are the texts that are written, whatever separates them, and a bad line is named."""

from pathlib import Path

import pytest

from asyncrl.data.prepare.own_rows import open_csv, own_rows
from asyncrl.data.prepare.published import prepare
from asyncrl.data.table import Columns, open_rows
from asyncrl.errors import DataError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.csv"


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_values_are_the_texts_that_are_written(path: Path, separator: str) -> None:
    path.write_text(f'\ufeffquestion{separator}label\r\n"2 + 3,\n 5; 7?"{separator}05\r\n\r\nx{separator}1.50\r\n')
    rows = open_csv(path)
    assert rows.columns == ["question", "label"]
    assert [rows[row] for row in range(len(rows))] == [
        {"question": "2 + 3,\n 5; 7?", "label": "05"},
        {"question": "x", "label": "1.50"},
    ]
    assert list(rows.column("label")) == ["05", "1.50"]


def test_a_line_with_too_few_or_too_many_values_is_a_bad_row(path: Path) -> None:
    path.write_text("a,b\n1\n1,2,3\n")
    rows = open_csv(path)
    for row, reason in ((0, "line 2: it has 1 values for 2 columns"), (1, "line 3: it has 3 values for 2 columns")):
        with pytest.raises(DataError, match=f"{path} {reason}"):
            rows[row]
    assert list(rows.column("b")) == [None, None]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a,b\n", "is empty: it has no rows below the names of its columns"),
        (b"a,a\n1,2\n", "has several columns 'a': give each its own name"),
        (b"a,b\n\xff,2\n", "as CSV: 'utf-8' codec can't decode byte 0xff"),
        (b'a,b\n"1,2\n', "as CSV: unexpected end of data"),
    ],
)
def test_a_file_that_is_no_csv_is_refused_in_one_line(path: Path, content: bytes, reason: str) -> None:
    path.write_bytes(content)
    with pytest.raises(DataError, match=reason) as refused:
        open_csv(path)
    assert "\n" not in str(refused.value)


def test_a_missing_file_is_answered_with_the_one_beside_it(path: Path) -> None:
    path.touch()
    with pytest.raises(DataError, match=rf"no such dataset: .*; did you mean {path}\?$"):
        open_csv(path.with_name("row.csv"))


# ── test own rows ─────────────────────────────────────────────────────────────────────────────


def test_columns_go_by_any_name(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"q": "2 + 3 = ?", "a": 5.0, "extra_info": {"level": 1, "tags": ["x"]}}')

    prepare(own_rows("sums", Columns("q", "a")), tmp_path / "mine.jsonl", tmp_path / "out.parquet")

    assert open_rows(tmp_path / "out.parquet")[0] == {
        "data_source": "sums",
        "prompt": [{"role": "user", "content": "2 + 3 = ?"}],
        "ability": "",
        "reward_model": {"style": "rule", "ground_truth": "5"},
        "extra_info": {"split": "mine", "index": 0, "a": 5.0, "level": 1},
    }


def test_further_columns_are_kept_for_the_reward(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"q": "2 + 3 = ?", "a": "5", "kind": "sum", "index": 70}')

    prepare(own_rows("sums", Columns("q", "a")), tmp_path / "mine.jsonl", tmp_path / "out.parquet")

    extra = {"split": "mine", "index": 70, "a": "5", "kind": "sum"}
    assert open_rows(tmp_path / "out.parquet")[0]["extra_info"] == extra


def test_a_column_of_several_types_is_told_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"q": "2?", "a": "5", "kind": 1}\n{"q": "3?", "a": "5", "kind": "sum"}')

    with pytest.raises(
        DataError, match=r"'sum'.*, but parquet has one type for each column: write its values as texts"
    ):
        prepare(own_rows("sums", Columns("q", "a")), tmp_path / "mine.jsonl", tmp_path / "out.parquet")


def test_a_row_without_them_is_a_bad_row(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"q": "2 + 3 = ?", "answer": "5"}')

    with pytest.raises(DataError, match="line 1: 'a' must be text or a number, got null"):
        prepare(own_rows("sums", Columns("q", "a")), tmp_path / "mine.jsonl", tmp_path / "out.parquet")


def test_a_row_with_pictures_is_not_copied_without_them(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"q": "<image>?", "a": "5", "images": ["x.png"]}')

    with pytest.raises(DataError, match=r"it has pictures, which are not copied: name the file itself as data\.train"):
        prepare(own_rows("sums", Columns("q", "a")), tmp_path / "mine.jsonl", tmp_path / "out.parquet")
