import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl.records.times import NodeTimes, TimesLine
from asyncrl.tools.dashboard.time_bands import TimeBands, TimesFile, bands_of_metrics
from asyncrl.tools.why import attribute


def line(step: int, **nodes: dict[str, float]) -> TimesLine:
    return TimesLine(
        step, 2.0 * (step + 1), 2.0, {name: NodeTimes("rollout", seconds) for name, seconds in nodes.items()}
    )


def test_shares_of_a_role_are_of_its_steady_part_as_in_why() -> None:
    bands, lines = TimeBands(), list[TimesLine]()
    first = {"loading": 30.0, "sampling": 10.0}
    for step, seconds in enumerate((first, {"sampling": 1.0, "idle": 1.0}, {"sampling": 2.0, "loading": 5.0})):
        lines.append(line(step, a=seconds, b={"sampling": 1.0}))
        bands.add(lines[-1])
    resumed = {"t": NodeTimes("trainer", {"loading": 9.0}), "a": NodeTimes("rollout", {"idle": 9.0})}
    lines.append(TimesLine(3, 20.0, 10.0, resumed))
    bands.add(lines[-1])
    steady = attribute(lines, is_steady=True)
    assert bands.by_role() == {"rollout": pytest.approx(steady.shares("rollout")), "trainer": {}}


def test_seconds_are_kept_by_span_node_and_activity() -> None:
    bands = TimeBands()
    bands.add(line(0, a={"sampling": 1.5, "waiting for weights": 0.5}))
    bands.add(line(1, a={"sampling": 1.0, "asleep": 1.0}, b={"sampling": 2.0}))
    assert (bands.nodes, bands.activities) == (["a", "b"], ["sampling", "waiting for weights", "asleep"])
    assert bands.seconds.tolist() == [[[1.5, 0.5, 0], [0, 0, 0]], [[1, 0, 1], [2, 0, 0]]]
    assert (bands.starts_s.tolist(), bands.ends_s.tolist()) == ([0, 2], [2, 4])
    assert bands.shares().tolist() == [[0.625, 0.125, 0.25], [1, 0, 0]]
    assert bands.shares(1).tolist() == [[0.5, 0, 0.5], [1, 0, 0]]


def test_shares_of_a_role_are_means_over_its_nodes_the_largest_first() -> None:
    bands = TimeBands()
    bands.add(line(0, a={"sampling": 2.0}, b={"sampling": 0.5, "asleep": 1.5}))
    assert bands.by_role() == {"rollout": {"sampling": 0.625, "asleep": 0.375}}
    assert TimeBands().by_role() == {}


def test_no_second_is_lost_when_spans_are_joined() -> None:
    bands = TimeBands(max_spans=8)
    for step in range(100):
        bands.add(line(step, a={"sampling": 2.0}))
    assert len(bands.ends_s) <= 8
    assert bands.seconds.sum() == 200
    assert (bands.starts_s[0], bands.ends_s[-1]) == (0, 200)
    assert np.array_equal(bands.ends_s[:-1], bands.starts_s[1:])


def test_a_span_that_ends_before_the_last_one_is_left_out() -> None:
    bands = TimeBands()
    bands.add(line(5, a={"sampling": 2.0}))
    bands.add(line(1, a={"sampling": 2.0}))
    assert bands.ends_s.tolist() == [12]


def append(path: Path, *steps: int, end: str = "\n") -> None:
    with path.open("a") as file:
        for step in steps:
            nodes = {"a": {"role": "rollout", "seconds": {"sampling": 2.0}}}
            file.write(json.dumps({"step": step, "time_s": 2.0 * step, "span_s": 2.0, "nodes": nodes}) + end)


def test_a_file_is_read_on_and_a_line_counts_once_it_is_whole(tmp_path: Path) -> None:
    times = TimesFile(tmp_path / "times.jsonl")
    times.advance()
    assert (times.read_share, times.is_behind) == (1.0, False)
    append(times.path, 1, 2)
    append(times.path, 3, end="")
    times.advance()
    assert (times.bands.ends_s.tolist(), times.is_behind) == ([2, 4], False)
    append(times.path, end="")
    with times.path.open("a") as file:
        file.write("\nnot json\n[1]\n")
    append(times.path, 4)
    times.advance()
    assert (times.bands.ends_s.tolist(), times.num_damaged) == ([2, 4, 6, 8], 2)


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    times = TimesFile(tmp_path / "times.jsonl")
    append(times.path, 1, 2, 3)
    times.advance()
    times.path.unlink()
    append(times.path, 1)
    times.advance()
    assert times.bands.ends_s.tolist() == [2]


def test_a_large_file_is_read_for_a_while_and_then_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrl.tools.dashboard.time_bands.SLICE_BYTES", 200)
    clock = iter(range(1000))
    times = TimesFile(tmp_path / "times.jsonl", clock=lambda: float(next(clock)))
    append(times.path, *range(1, 9))
    shares = []
    for _ in range(8):
        times.advance(0.5)
        shares.append((times.is_behind, times.read_share))
    assert shares[0][0]
    assert 0 < shares[0][1] < 1
    assert shares[-1] == (False, 1.0)
    assert times.bands.ends_s.tolist() == [2.0 * step for step in range(1, 9)]


def test_a_run_without_the_file_has_the_times_of_its_trainer() -> None:
    lines: list[dict[str, Any]] = [
        {"time_s": 10.0, "train_s": 1.0, "wait_s": 0.5, "publish_s": 0.5},
        {"time_s": 14.0, "train_s": 1.0, "wait_s": 2.0, "publish_s": 0.5},
        {"time_s": None, "train_s": 1.0},
        {"reward": 1.0},
    ]
    bands = bands_of_metrics(lines)
    assert bands.nodes == ["trainer"]
    assert (bands.starts_s.tolist(), bands.ends_s.tolist()) == ([8, 10], [10, 14])
    rows = [dict(zip(bands.activities, row[0].tolist(), strict=True)) for row in bands.seconds]
    assert rows[1] == {"training": 1.0, "waiting for trajectories": 2.0, "publishing": 0.5, "other": 0.5}
