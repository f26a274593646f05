from pathlib import Path

import pytest

from asyncrl.data.columns import Columns
from asyncrl.data.prepare.own_rows import own_rows
from asyncrl.data.prepare.published import prepare
from asyncrl.data.table import open_rows
from asyncrl.errors import DataError


def test_columns_go_by_any_name(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"q": "2 + 3 = ?", "a": 5.0, "extra_info": {"level": 1, "tags": ["x"]}}')

    prepare(own_rows("sums", Columns("q", "a")), tmp_path / "mine.jsonl", tmp_path / "out.parquet")

    assert open_rows(tmp_path / "out.parquet")[0] == {
        "data_source": "sums",
        "prompt": [{"role": "user", "content": "2 + 3 = ?"}],
        "ability": "",
        "reward_model": {"style": "rule", "ground_truth": "5"},
        "extra_info": {"split": "mine", "index": 0, "level": 1},
    }


def test_a_row_without_them_is_a_bad_row(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"q": "2 + 3 = ?", "answer": "5"}')

    with pytest.raises(DataError, match="line 1: 'a' must be text or a number, got null"):
        prepare(own_rows("sums", Columns("q", "a")), tmp_path / "mine.jsonl", tmp_path / "out.parquet")


def test_a_row_with_pictures_is_not_copied_without_them(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"q": "<image>?", "a": "5", "images": ["x.png"]}')

    with pytest.raises(DataError, match=r"it has pictures, which are not copied: name the file itself as data\.train"):
        prepare(own_rows("sums", Columns("q", "a")), tmp_path / "mine.jsonl", tmp_path / "out.parquet")
