from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncrl.data.check import inspect
from asyncrl.data.prepare.geo3k import GEO3K
from asyncrl.data.prepare.published import prepare
from asyncrl.data.table import open_rows
from asyncrl.errors import DataError

PUBLISHED = Path(__file__).parents[4] / "shared" / "data" / "geometry3k_sample"
PICTURE = b"\x89PNG..."


def folder_of(split: Path, number: int, **others: Any) -> Path:
    folder = split / str(number)
    folder.mkdir(parents=True)
    info = {"annotat_text": f"Find $x_{number}$.", "choices": ["12", "13 ", "14", "15"], "answer": "B"} | others
    (folder / "data.json").write_bytes(msgspec.json.encode(info))
    (folder / "img_diagram.png").write_bytes(PICTURE)
    return folder


def test_a_folder_becomes_a_row_with_its_picture(tmp_path: Path) -> None:
    for number in (10, 9):
        folder_of(tmp_path / "train", number)

    assert prepare(GEO3K, tmp_path / "train", tmp_path / "out.parquet").num_rows == 2

    row = open_rows(tmp_path / "out.parquet")[0]
    (turn,) = row["prompt"]
    assert turn["content"].startswith("<image>Find $x_9$. You FIRST think"), "in the order of their numbers"
    assert turn["content"].endswith(r"put in \boxed{}.")
    assert row["images"] == [{"bytes": PICTURE, "path": "9.png"}]
    assert (row["data_source"], row["reward_model"]["ground_truth"]) == ("hiyouga/geometry3k", "13")
    assert row["extra_info"] == {"split": "train", "index": 0, "answer": "13", "question": "<image>Find $x_9$."}


def test_parquet_with_answers_is_converted_too(tmp_path: Path) -> None:
    rows = [{"images": [{"bytes": PICTURE, "path": "a.png"}], "problem": "<image>Find $x$.", "answer": "5"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")

    prepare(GEO3K, tmp_path / "train.parquet", tmp_path / "out.parquet")

    row = open_rows(tmp_path / "out.parquet")[0]
    assert row["images"] == [{"bytes": PICTURE, "path": "a.png"}]
    assert row["reward_model"]["ground_truth"] == "5"
    assert row["prompt"][0]["content"].startswith("<image>Find $x$. You FIRST")


def test_a_problem_without_the_mark_of_its_picture_gets_it(tmp_path: Path) -> None:
    rows = [{"images": [{"bytes": PICTURE, "path": ""}], "problem": "Find $x$.", "answer": "5"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    prepare(GEO3K, tmp_path / "train.parquet", tmp_path / "out.parquet", instruction="")
    assert open_rows(tmp_path / "out.parquet")[0]["prompt"][0]["content"] == "<image>Find $x$."


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ({"answer": "E"}, "its answer 'E' is not one of its choices"),
        ({"answer": "AB"}, "its answer 'AB' is not one of its choices"),
        ({"choices": None}, "its answer 'B' is not one of its choices"),
        ({"annotat_text": ""}, "'annotat_text' is missing, or not text"),
    ],
)
def test_a_bad_folder_is_named_with_its_reason(tmp_path: Path, others: dict[str, Any], reason: str) -> None:
    folder = folder_of(tmp_path / "train", 3, **others)
    with pytest.raises(DataError, match=f"{folder}: {reason}$"):
        prepare(GEO3K, tmp_path / "train", tmp_path / "out.parquet")


def test_folders_with_a_missing_picture_or_broken_json_are_bad_rows(tmp_path: Path) -> None:
    (folder_of(tmp_path / "train", 1) / "img_diagram.png").unlink()
    (folder_of(tmp_path / "train", 2) / "data.json").write_text("{")
    folder_of(tmp_path / "train", 3)

    report = prepare(GEO3K, tmp_path / "train", tmp_path / "out.parquet", skip_bad=True)

    assert [row.place for row in report.bad] == [str(tmp_path / "train" / number) for number in ("1", "2")]
    assert "img_diagram.png cannot be read: there is no such file" in report.bad[0].reason
    assert "data.json is not a JSON object" in report.bad[1].reason


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no folders with a data\.json in them; give the folder of one split"):
        prepare(GEO3K, tmp_path, tmp_path / "out.parquet")


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="Geometry3K is not here")
def test_published_rows_are_written_with_their_pictures(tmp_path: Path) -> None:
    report = prepare(GEO3K, PUBLISHED, tmp_path / "out.parquet", split="train")

    inspection = inspect(tmp_path / "out.parquet")

    assert (report.num_rows, report.bad) == (report.num_read, [])
    assert inspection.bad == []
    assert len(inspection.images) == inspection.num_rows == report.num_rows
