"""Episodes of samples files."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from asyncrl.errors import LedgerError
from asyncrl.messages.trajectory import FROM_PROMPT, Turn
from asyncrl.records import samples as module
from asyncrl.records.samples import SampleRow, read_episodes, read_first_episodes
from tests.records.test_samples import samples_row, written

TURNS = [Turn(FROM_PROMPT, 0, 1, text="look"), Turn(0, 1, 1, reward=0.5, observation="left 2", text="4")]


def episode(group_id: int, index: int = 0) -> SampleRow:
    return replace(samples_row(index, [9, 2]), group_id=group_id, turns=TURNS, context_ids=bytes(4))


def test_one_of_each_of_the_first_groups_of_the_newest_step_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHOWN_EPISODES", 2)
    written(tmp_path, 3, [episode(1)])
    written(tmp_path, 4, [episode(7), episode(7, 1), episode(8), episode(9)])
    found = read_first_episodes(tmp_path)
    assert [(one.group_id, one.index, one.prompt) for one in found] == [(7, 0, "2 + 3 = ?"), (8, 0, "2 + 3 = ?")]
    assert found[0].turns == TURNS


def test_completions_without_turns_are_no_episodes(tmp_path: Path) -> None:
    assert read_first_episodes(tmp_path) == []
    path = written(tmp_path, 4, [samples_row(0, [1]), episode(7, 1)])
    assert [one.index for one in read_episodes(path, lambda *_: True)] == [1]


def test_a_file_of_an_earlier_version_has_no_episodes(tmp_path: Path) -> None:
    path = written(tmp_path, 4, [episode(7)])
    pq.write_table(pq.read_table(path).drop_columns(["turns"]), path)
    assert read_first_episodes(tmp_path) == []


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "step_000001.parquet").write_bytes(b"?")
    with pytest.raises(LedgerError, match=r"step_000001\.parquet cannot be read"):
        read_first_episodes(tmp_path)
