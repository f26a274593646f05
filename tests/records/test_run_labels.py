"""Runs of one name are told apart."""

from pathlib import Path

from asyncrl.records.run_labels import labels


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    runs = [tmp_path / name for name in ("a/runs/x", "b/runs/x", "b/runs/y")]
    assert labels(runs) == ["a/runs/x", "b/runs/x", "y"]
    assert labels([tmp_path / "x", tmp_path / "x"]) == ["x", "x"], "one run given twice"
