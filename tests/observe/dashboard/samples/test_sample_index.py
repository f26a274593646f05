from pathlib import Path

import pyarrow.parquet as pq

from asyncrl.observe.dashboard.samples.sample_index import SampleIndex
from tests.observe.dashboard.browser_free import a_sample, an_episode, write


def filled(folder: Path) -> SampleIndex:
    index = SampleIndex(folder)
    while True:
        index.advance()
        if not index.num_waiting:
            return index


def test_numbers_of_every_sample_are_indexed(tmp_path: Path) -> None:
    write(tmp_path, a_sample(0, 7, 0), an_episode(0, group_id=7, index=1, reward=-0.5, node="rollout-1"))
    write(tmp_path, a_sample(3, 9, finish_reason="length", data_source="math"))
    write(tmp_path, a_sample(2, 1), held_out=True)
    index = filled(tmp_path)
    columns = index.columns
    by = sorted(
        zip(*(columns[n].tolist() for n in ("step", "group_id", "index", "reward", "num_turns", "split")), strict=True)
    )
    assert by == [(0, 7, 0, 1.0, 1, 0), (0, 7, 1, -0.5, 2, 0), (2, 1, 0, 1.0, 1, 1), (3, 9, 0, 1.0, 1, 0)]
    assert index.words["node"] == ["rollout-0", "rollout-1"]
    assert sorted(index.words["data_source"]) == ["", "math"]
    assert index.code("finish_reason", "length") >= 0 > index.code("finish_reason", "abort")
    assert index.num_bytes < 1000


def test_files_are_read_the_newest_first_and_some_at_a_time(tmp_path: Path) -> None:
    for step in range(5):
        write(tmp_path, a_sample(step))
    clock = iter(range(100))
    index = SampleIndex(tmp_path, clock=lambda: float(next(clock)))
    index.advance(0.5)
    assert (index.columns["step"].tolist(), index.num_waiting, index.num_files) == ([4], 4, 5)
    index.advance(1.5)
    assert sorted(index.columns["step"].tolist()) == [2, 3, 4]


def test_new_changed_and_removed_files_are_noticed(tmp_path: Path) -> None:
    first = write(tmp_path, a_sample(0))
    index = filled(tmp_path)
    write(tmp_path, a_sample(0), a_sample(0, index=1))
    write(tmp_path, a_sample(1))
    index.advance()
    assert sorted(index.columns["step"].tolist()) == [0, 0, 1]
    first.unlink()
    index.advance()
    assert index.columns["step"].tolist() == [1]


def test_a_damaged_file_is_named_and_the_others_are_indexed(tmp_path: Path) -> None:
    write(tmp_path, a_sample(0))
    (tmp_path / "step_000001.parquet").write_bytes(b"PAR1 not really")
    index = filled(tmp_path)
    assert index.columns["step"].tolist() == [0]
    assert list(index.problems) == ["step_000001.parquet"]


def test_files_of_earlier_versions_are_indexed(tmp_path: Path) -> None:
    path = write(tmp_path, a_sample(0))
    lacking = ["num_turns", "context_tokens", "turns", "context_ids", "data_source"]
    pq.write_table(pq.read_table(path).drop_columns(lacking), path)
    index = filled(tmp_path)
    assert (index.columns["num_turns"].tolist(), index.words["data_source"]) == ([1], [""])


def test_a_run_without_samples_has_an_empty_index(tmp_path: Path) -> None:
    index = filled(tmp_path / "none")
    assert (len(index.columns["step"]), index.num_files, index.newest_version()) == (0, 0, {})
    assert len(index.newest(10)["step"]) == 0


def test_the_newest_steps_and_the_newest_version_of_each_node(tmp_path: Path) -> None:
    for step in range(4):
        write(tmp_path, a_sample(step, node=f"rollout-{step % 2}"))
    write(tmp_path, a_sample(9), held_out=True)
    index = filled(tmp_path)
    assert sorted(index.newest(2)["step"].tolist()) == [2, 3]
    assert index.newest_version() == {"rollout-0": 9, "rollout-1": 3}
