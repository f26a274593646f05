from pathlib import Path
from typing import Any

import msgspec
import pytest

from asyncrl.config import Data
from asyncrl.data.check import inspect
from asyncrl.errors import DataError


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    return path


def test_a_good_dataset_is_described(tmp_path: Path) -> None:
    """Prompts of 1 to 21 characters: the 5 % quantile is the second shortest, the median the eleventh."""
    rows: list[dict[str, Any]] = [
        {"prompt": "x" * n, "answer": "1", "data_source": "b" if n > 3 else "a"} for n in range(1, 22)
    ]
    rows[0]["prompt"] = [{"role": "user", "content": "x"}]
    path = write(tmp_path, *rows)

    inspection = inspect(path)

    inspection.require_usable()
    assert inspection.text() == "\n".join(
        [
            f"{path}: 21 rows",
            "  columns       prompt, answer, data_source",
            "  data sources  b 18   a 3",
            "  prompts       1 chat, 20 text",
            "  prompt chars  min 1   5% 2   median 11   95% 20   max 21",
            "  no problems",
        ]
    )


def test_bad_rows_are_named_up_to_the_fifth_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "fine", "answer": "1"}, *[{"prompt": "", "answer": "1"}] * 7)

    inspection = inspect(path)

    assert inspection.text().splitlines()[-7:] == [
        "  7 problems",
        *[f"    {path} line {line}: 'prompt' is empty" for line in range(2, 7)],
        "    and 2 more",
    ]
    with pytest.raises(DataError, match=r"^7 of 8 rows cannot be used; the first: .* line 2: 'prompt' is empty$"):
        inspection.require_usable()


def test_a_dataset_without_one_good_row_is_still_described(tmp_path: Path) -> None:
    text = inspect(write(tmp_path, {"prompt": "", "answer": "1"})).text()

    assert "  prompt chars  -" in text
    assert "  1 problem\n" in text


def test_columns_go_by_the_names_given(tmp_path: Path) -> None:
    path = write(tmp_path, {"q": "?", "a": "5"})

    inspect(path, Data(train="", prompt_column="q", answer_column="a")).require_usable()
    with pytest.raises(DataError, match="has no column 'prompt': it has q, a"):
        inspect(path)
