import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from asyncrl.tools.dashboard.query import Query, RefusedAnswer
from asyncrl.tools.dashboard.sample_index import SampleIndex, SampleQuery, page
from tests.tools.dashboard.browser_free import a_sample, an_episode, write


def filled(folder: Path, newest: int | None = None) -> SampleIndex:
    index = SampleIndex(folder, newest=newest)
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
    assert sum(column.nbytes for column in index.columns.values()) < 1000


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


def test_the_newest_steps_and_the_newest_version_of_each_node(tmp_path: Path) -> None:
    for step in range(4):
        write(tmp_path, a_sample(step, node=f"rollout-{step % 2}"))
    write(tmp_path, a_sample(9), held_out=True)
    assert filled(tmp_path).newest_version() == {"rollout-0": 9, "rollout-1": 3}
    newest = filled(tmp_path, newest=2)
    assert sorted(newest.columns["step"].tolist()) == [2, 3]
    write(tmp_path, a_sample(4, node="rollout-0"))
    newest.advance()
    assert sorted(newest.columns["step"].tolist()) == [3, 4]
    assert (newest.num_files, newest.newest_version()) == (2, {"rollout-0": 4, "rollout-1": 3})


# ── test sample query ─────────────────────────────────────────────────────────────────────────

FIELDS = {"step": "number", "reward": "reward", "length": "num_tokens", "staleness": "staleness", "group": "group_id"}


@pytest.fixture
def index(tmp_path: Path) -> SampleIndex:
    """60 samples with many ties."""
    rng = random.Random(0)
    for step in range(6):
        rows = [
            a_sample(
                step, group_id=step * 2 + i // 5, index=i % 5, reward=float(rng.randint(0, 2)),
                staleness=rng.randint(0, 3),
                finish_reason=rng.choice(["stop", "length"]), node=rng.choice(["a", "b"]),
                completion_ids=bytes(4 * rng.randint(0, 4)), behavior_logprobs=b"", spans=[],
                data_source=rng.choice(["", "math"]),
            )
            for i in range(10)
        ]  # fmt: skip
        write(tmp_path, *rows)
    write(tmp_path, a_sample(3, 99), held_out=True)
    index = SampleIndex(tmp_path)
    index.advance(60)
    return index


def asked(index: SampleIndex, query: str) -> list[dict[str, Any]]:
    return page(index, SampleQuery.read(Query(query.encode()))).rows


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("order", ["descending", "ascending"])
def test_pages_together_are_every_sample_in_order(index: SampleIndex, field: str, order: str) -> None:
    rows = [
        row for offset in range(0, 70, 7) for row in asked(index, f"sort={field}&order={order}&offset={offset}&limit=7")
    ]
    sign = -1 if order == "descending" else 1
    keys = [(sign * row[FIELDS[field]], -row["number"], row["group_id"], row["index"]) for row in rows]
    assert len(rows) == 61
    assert keys == sorted(keys)
    assert len({(row["file"], row["split"], row["row"]) for row in rows}) == 61


@pytest.mark.parametrize(
    ("query", "is_wanted"),
    [
        ("reward_min=1&reward_max=1", lambda row: row["reward"] == 1),
        ("step_min=2&step_max=3.5", lambda row: row["step"] in ((1, 2) if row["split"] == "train" else (2, 3))),
        ("length_max=1", lambda row: row["num_tokens"] <= 1),
        ("staleness_min=2", lambda row: row["staleness"] >= 2),
        ("group_min=3&group_max=3", lambda row: row["group_id"] == 3),
        ("truncated=yes", lambda row: row["finish_reason"] == "length"),
        ("truncated=no&node=a", lambda row: row["finish_reason"] != "length" and row["node"] == "a"),
        ("data_source=math", lambda row: row["data_source"] == "math"),
        ("split=held_out", lambda row: row["split"] == "held_out"),
        ("node=nobody", lambda row: False),
    ],
)
def test_a_filter_keeps_what_it_says(index: SampleIndex, query: str, is_wanted: Any) -> None:
    every = asked(index, "limit=200")
    found = page(index, SampleQuery.read(Query(f"limit=200&{query}".encode())))
    assert found.rows == [row for row in every if is_wanted(row)]
    assert (found.total, found.indexed) == (len(found.rows), 61)


def test_a_page_beyond_the_end_is_empty(index: SampleIndex) -> None:
    assert asked(index, "offset=1000") == []
    assert asked(index, "limit=0") == []


@pytest.mark.parametrize("query", ["sort=secret", "order=up", "limit=1000", "offset=-1", "reward_min=x", "split=all"])
def test_other_queries_are_refused(query: str) -> None:
    with pytest.raises(RefusedAnswer, match="expected"):
        SampleQuery.read(Query(query.encode()))
