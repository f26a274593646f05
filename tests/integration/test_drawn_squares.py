"""A small Qwen3-VL learns a task that needs its pictures, and nothing where they are of no use."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncrl.tools.toy.models import make_drawn_squares
from tests.integration.conftest import StartRun, starting_runs

CONF = Path(__file__).parents[2] / "conf" / "drawn-squares.toml"
GUESSING = 0.1
"""Reward of a policy that does not see the picture."""


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the model of the drawn squares, which takes a minute, its data and its run file."""
    folder = tmp_path_factory.mktemp("taught")
    make_drawn_squares(folder, report=lambda _: None)
    (folder / "toy.toml").write_text(CONF.read_text().replace("cache/drawn-squares", str(folder)))
    return folder


@pytest.fixture
def start(taught: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartRun]:
    with starting_runs(taught, tmp_path_factory) as start:
        yield start


@pytest.mark.long("trains until it has learned")
def test_a_small_qwen3_vl_learns_to_count_what_it_sees(start: StartRun) -> None:
    run = start(steps=20).end()
    assert run.code == 0, run.errors
    summary = run.summary
    assert summary.base_accuracy is not None
    assert summary.base_accuracy <= 0.2
    assert summary.held_out_accuracy is not None
    assert summary.held_out_accuracy >= 0.9
    assert summary.logprob_gap_max is not None
    assert summary.logprob_gap_max < 1e-4


@pytest.mark.long("trains until it has learned")
def test_with_the_pictures_of_other_prompts_its_reward_stays_at_guessing(taught: Path, start: StartRun) -> None:
    """Judged by the reward: accuracy on true pictures drifts, because chains pay no less than guesses."""
    rows = pq.read_table(taught / "train.parquet").to_pylist()
    others = [rows[-1], *rows[:-1]]
    mixed = [row | {"images": other["images"]} for row, other in zip(rows, others, strict=True)]
    pq.write_table(pa.Table.from_pylist(mixed), taught / "mixed.parquet")

    run = start(f"data.train={taught}/mixed.parquet", steps=40).end()

    assert run.code == 0, run.errors
    rewards = [metrics["reward"] for metrics in run.directory.read_metrics()]
    assert sum(rewards) / len(rewards) < GUESSING + 0.03
