"""Epochs become steps by the rows that are trained on."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.data.run_length import resolve_steps


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
