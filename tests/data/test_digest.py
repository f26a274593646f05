import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncrl.config.sections.data import Data
from asyncrl.data.digest import check_same
from asyncrl.data.prompts import held_out_stream, train_stream
from asyncrl.errors import DataError

ROWS: list[dict[str, Any]] = [
    {"prompt": f"{n} + 1 = ?", "answer": str(n + 1), "extra_info": {"index": n}} for n in range(5)
]


def digest(*files: Path, **settings: object) -> str:
    data = Data(train=[str(file) for file in files], **settings)  # type: ignore[arg-type]
    return train_stream(data, seed=0).summary.digest


def write(path: Path, rows: list[dict[str, Any]], **how: str) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path, **how)
    return path


def test_the_same_rows_have_the_same_digest_however_they_are_compressed(tmp_path: Path) -> None:
    one = write(tmp_path / "one.parquet", ROWS)
    two = write(tmp_path / "two.parquet", ROWS, compression="zstd")
    lines = tmp_path / "three.jsonl"
    lines.write_text("\n".join(json.dumps(row) for row in ROWS))

    assert digest(one) == digest(two) == digest(lines)
    assert len(digest(one)) == 32


@pytest.mark.parametrize(
    "changed",
    [
        [*ROWS[1:], ROWS[0]],
        ROWS[:-1],
        [*ROWS[:-1], ROWS[-1] | {"answer": "99"}],
        [*ROWS[:-1], ROWS[-1] | {"extra_info": {"index": 99}}],
        [*ROWS[:-1], ROWS[-1] | {"prompt": ROWS[-1]["prompt"] + " "}],
    ],
    ids=["another order", "one fewer", "another answer", "other info", "another prompt"],
)
def test_other_rows_have_another_digest(tmp_path: Path, changed: list[dict[str, Any]]) -> None:
    assert digest(write(tmp_path / "a.parquet", ROWS)) != digest(write(tmp_path / "b.parquet", changed))


def test_a_repaired_row_is_another_dataset(tmp_path: Path) -> None:
    bad = write(tmp_path / "a.parquet", [*ROWS, ROWS[0] | {"prompt": ""}])
    good = write(tmp_path / "b.parquet", [*ROWS, ROWS[0]])
    assert digest(bad, on_bad_row="skip") != digest(good)


def test_held_out_prompts_have_a_digest_too(tmp_path: Path) -> None:
    path = str(write(tmp_path / "a.parquet", ROWS))
    held_out = held_out_stream(Data(train=path, held_out=path), max_prompts=2).summary.digest
    assert held_out == digest(tmp_path / "a.parquet")


def test_a_replaced_file_is_named_with_both_digests(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.parquet", ROWS), write(tmp_path / "b.parquet", ROWS)]
    named, before = [str(file) for file in files], digest(*files)
    check_same("data.train", named, before, digest(*files))

    write(files[1], ROWS[::-1])
    after = digest(*files)
    with pytest.raises(DataError) as refused:
        check_same("data.train", named, before, after)
    assert str(refused.value) == (
        f"data.train: {files[1]} has other rows than when this run began (digest {after.split()[1]}, recorded "
        f"{before.split()[1]}); put the old file back, or start another run"
    )
    assert refused.value.exit_code == 78


def test_another_number_of_files_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", ROWS)
    with pytest.raises(DataError, match=r"data\.train names 1 files, but this run began with 2"):
        check_same("data.train", [str(file)], digest(file, file), digest(file))


def test_a_run_without_a_recorded_digest_continues() -> None:
    check_same("data.train", ["a"], "", "4f1c")
