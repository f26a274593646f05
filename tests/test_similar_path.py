"""A path that does not exist is answered with the one that was probably meant, and with none that was not."""

from pathlib import Path

import pytest

from asyncrl.similar_path import did_you_mean


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("broken.jsonl", "train.jsonl", "train.parquet", "grade.py"):
        (tmp_path / name).touch()
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("trian.jsonl", "train.jsonl"),
        ("trian.parquet", "train.parquet"),
        ("gradee.py", "grade.py"),
        ("grade.txt", "grade.py"),
    ],
)
def test_a_similar_name_is_suggested_and_of_equal_ones_that_of_the_same_format(path: str, meant: str) -> None:
    assert did_you_mean(Path(path)) == f"; did you mean {meant}?"


@pytest.mark.parametrize("path", ["nope.jsonl", "zebra/train.jsonl", "modle", ""])
def test_an_equal_suffix_is_no_similarity_and_neither_are_other_folders_and_kinds(path: str) -> None:
    assert did_you_mean(Path(path)) == ""


def test_a_folder_that_does_not_exist_is_taken_for_one_of_a_similar_name() -> None:
    Path("model/mine").mkdir()
    assert did_you_mean(Path("models/mine"), Path.is_dir) == "; did you mean model/mine?"
    assert did_you_mean(Path("models/theirs"), Path.is_dir) == ""


def test_what_fits_is_up_to_the_caller() -> None:
    assert did_you_mean(Path("modle"), Path.is_dir) == "; did you mean model?"
