from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncrl.data.prepare.dapo_math import DAPO_MATH
from asyncrl.data.prepare.published import PrepareResult, prepare
from asyncrl.data.table import open_rows
from asyncrl.errors import DataError


def a_row(question: str, answer: Any, index: str = "0-1") -> dict[str, Any]:
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": question, "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": index},
    }


def prepared(folder: Path, *rows: dict[str, Any], **choices: Any) -> PrepareResult:
    pq.write_table(pa.Table.from_pylist(list(rows)), folder / "dapo.parquet")
    return prepare(DAPO_MATH, folder / "dapo.parquet", folder / "out.parquet", **choices)


def test_each_prompt_comes_once_and_its_words_are_left_alone(tmp_path: Path) -> None:
    one, two = a_row("1 + 1?", "2", "first"), a_row("2 + 2?", "4", "second")

    report = prepared(tmp_path, one, two, one, one)

    assert (report.num_read, report.num_rows, report.num_repeated) == (4, 2, 2)
    assert open_rows(tmp_path / "out.parquet")[0] == {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": "1 + 1?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"split": "dapo", "index": 0, "id": "first"},
    }


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (a_row("?", None), "'reward_model.ground_truth' is missing, or neither text nor a number"),
        (a_row("?", " "), "'reward_model.ground_truth' is missing, or neither text nor a number"),
        (a_row("", "5"), "'prompt' has a message without role or content"),
        (a_row("?", "5") | {"prompt": []}, "'prompt' is not a chat"),
    ],
)
def test_a_bad_row_is_named_with_its_reason(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    with pytest.raises(DataError, match=f"row 0: {reason}$"):
        prepared(tmp_path, row)
