"""A small Qwen3-VL learns from a picture that its environment shows in the second turn, and nothing from another."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from asyncrl.tools.toy.models import make_drawn_squares
from tests.integration.conftest import ROOT, StartRun, starting_runs

GUESSING = 0.1
"""Reward of a policy that does not see the picture."""


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the model of the drawn squares, which takes a minute, its data, its run file and its environment."""
    folder = tmp_path_factory.mktemp("taught")
    make_drawn_squares(folder, report=lambda _: None)
    conf = (ROOT / "conf" / "shown-squares.toml").read_text()
    (folder / "toy.toml").write_text(conf.replace("cache/drawn-squares", str(folder)).replace("examples", str(folder)))
    shutil.copy(ROOT / "examples" / "shown_squares.py", folder)
    return folder


@pytest.fixture
def start(taught: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartRun]:
    with starting_runs(taught, tmp_path_factory) as start:
        yield start


@pytest.mark.long("trains until it has learned")
def test_a_small_qwen3_vl_learns_to_count_what_its_environment_shows(start: StartRun) -> None:
    run = start(steps=60).end()
    assert run.code == 0, run.errors
    summary = run.summary
    assert summary.base_accuracy is not None
    assert summary.base_accuracy <= 0.2
    assert summary.held_out_accuracy is not None
    assert summary.held_out_accuracy >= 0.5
    assert summary.logprob_gap_max is not None
    assert summary.logprob_gap_max < 1e-4
    run.assert_adds_up()


@pytest.mark.long("trains until it has learned")
def test_with_another_picture_its_reward_stays_at_guessing(start: StartRun) -> None:
    run = start("environment.options.swapped=true", steps=60).end()
    assert run.code == 0, run.errors
    rewards = [metrics["reward"] for metrics in run.directory.read_metrics()]
    assert sum(rewards) / len(rewards) < GUESSING + 0.03


@pytest.mark.long("kills a rollout in mid-episode")
def test_a_killed_rollout_costs_no_episode_its_pictures(start: StartRun) -> None:
    run = start("rollout.replicas=2", "checkpoint.every_steps=2", "trainer.warmup_steps=1", steps=6)
    run.until(lambda: run.steps_done() >= 2)
    run.kill_node("rollout-0")
    assert run.end().code == 0, (run.errors, run.output)
    run.assert_adds_up()
    assert run.audit().problems == []
    assert run.summary.logprob_gap_max is not None
    assert run.summary.logprob_gap_max < 1e-4
    rows = [row for file in run.directory.samples.glob("*.parquet") for row in pq.read_table(file).to_pylist()]
    assert {tuple(turn["num_images"] for turn in row["turns"]) for row in rows} == {(0, 1)}
