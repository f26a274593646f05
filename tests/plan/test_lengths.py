"""Drawn and recorded completion lengths."""

import math
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncrl.errors import DataError
from asyncrl.plan.lengths import Lognormal, Recorded, read_samples


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
    recorded = Recorded([[1, 2], [30, 40]])
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
