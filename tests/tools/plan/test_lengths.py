"""Drawn and recorded completion lengths."""

import math
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncrl.errors import ConfigError, DataError
from asyncrl.tools.plan.lengths import Lognormal, RecordedLengths, TrainingSpeed, decode_line, read_samples


def drawn(lengths: Lognormal, count: int = 4000, size: int = 4) -> list[list[int]]:
    rng = random.Random(0)
    return [lengths.group(rng, size) for _ in range(count)]


def test_the_mean_is_that_of_the_draws_after_the_cut():
    lengths = Lognormal(math.log(100), 1.0, 400, prompt_share=0.3)
    tokens = [length for group in drawn(lengths) for length in group]
    assert sum(tokens) / len(tokens) == pytest.approx(lengths.mean, rel=0.02)
    assert max(tokens) == 400


def test_without_spread_all_completions_have_the_median_length():
    lengths = Lognormal(math.log(100), 0.0, 400)
    assert drawn(lengths, 1) == [[100] * 4]
    assert lengths.mean == pytest.approx(100)
    assert Lognormal(math.log(500), 0.0, 400).mean == 400


def test_a_prompt_share_of_one_makes_completions_of_a_group_equally_long():
    groups = drawn(Lognormal(math.log(100), 1.0, 10**6, prompt_share=1.0), 50)
    assert all(len(set(group)) == 1 for group in groups)
    assert len({group[0] for group in groups}) > 25


def test_recorded_groups_stay_together_and_others_are_drawn_from_one():
    recorded = RecordedLengths([[1, 2], [30, 40]])
    rng = random.Random(0)
    assert all(recorded.group(rng, 2) in ([1, 2], [30, 40]) for _ in range(20))
    assert all(set(group) <= {1, 2} or set(group) <= {30, 40} for group in (recorded.group(rng, 5) for _ in range(20)))
    assert recorded.mean == 73 / 4


def test_samples_of_a_run_are_read_by_step_and_group(tmp_path: Path) -> None:
    for step in (0, 1):
        columns = {"step": [step] * 3, "group_id": [7, 7, 8], "num_tokens": [1, 2, 0], "reward": [0.0] * 3}
        pq.write_table(pa.table(columns), tmp_path / f"step_{step:06d}.parquet")
    assert read_samples(tmp_path).groups == [[1, 2], [1], [1, 2], [1]]
    assert read_samples(tmp_path / "step_000001.parquet").groups == [[1, 2], [1]]


def test_other_files_than_samples_are_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no trajectories in"):
        read_samples(tmp_path)
    pq.write_table(pa.table({"length": [1]}), tmp_path / "other.parquet")
    with pytest.raises(DataError, match=r"other\.parquet is not a samples file of a run: "):
        read_samples(tmp_path)
    with pytest.raises(DataError, match="no such file or folder"):
        read_samples(tmp_path / "absent.parquet")


# ── test speeds ───────────────────────────────────────────────────────────────────────────────
# Interpolation between measured points.


def test_a_decode_step_lies_on_the_line_between_measured_ones_and_beyond():
    line = decode_line([(1, 100), (11, 550)])  # 10 ms and 20 ms
    assert [line.at(running) for running in (1, 6, 11, 21)] == pytest.approx([0.01, 0.015, 0.02, 0.03])


def test_three_points_bend():
    line = decode_line([(30, 500), (10, 500), (20, 500)])  # 20, 40, 60 ms in any order
    assert [line.at(running) for running in (5, 15, 25, 40)] == pytest.approx([0.01, 0.03, 0.05, 0.08])


def test_one_point_of_decoding_is_a_step_of_one_length():
    assert decode_line([(4, 40)]).at(100) == pytest.approx(0.1)


def test_one_point_of_training_scales_with_the_devices():
    speed = TrainingSpeed([(8, 0.001)])
    assert [speed.seconds(1000, devices) for devices in (4, 8, 16)] == pytest.approx([2.0, 1.0, 0.5])


def test_two_points_of_training_show_what_does_not_scale():
    speed = TrainingSpeed([(1, 0.5), (2, 0.3)])  # 0.1 + 0.4 / devices
    assert speed.seconds(1, 4) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([(1, 100), (1, 200)], "two points have the same first number"),
        ([(1, 10), (10, 1000)], r"0\.1 s with 1 running and 0\.01 s with 10, but more cannot make it shorter"),
    ],
)
def test_contradictory_points_are_refused(points, message):
    with pytest.raises(ConfigError, match=message):
        decode_line(points)
