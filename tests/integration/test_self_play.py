"""Two seats of one policy learn from rewards that add up to nothing, each from its own."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import ROOT, StartRun, samples, starting_runs

UNTRAINED = 0.2
"""Greatest share of episodes in which both seats say the highest number by chance; of ten numbers, one in a hundred."""


@pytest.fixture(scope="module")
def bids(hidden_sums: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the run file of the bids, on the model of the hidden sums."""
    folder = tmp_path_factory.mktemp("bids")
    conf = (ROOT / "conf" / "self-play.toml").read_text()
    (folder / "toy.toml").write_text(
        conf.replace("cache/hidden-sums", str(hidden_sums)).replace("examples", str(folder))
    )
    shutil.copy(ROOT / "examples" / "bids.py", folder)
    return folder


@pytest.fixture
def start(bids: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartRun]:
    with starting_runs(bids, tmp_path_factory) as start:
        yield start


@pytest.mark.long("trains until both seats say the highest number")
def test_each_seat_learns_from_its_own_reward(start: StartRun) -> None:
    run = start(steps=25).end()
    assert run.code == 0, run.errors
    summary = run.summary
    assert summary.base_accuracy is not None
    assert summary.base_accuracy < UNTRAINED
    assert summary.held_out_accuracy is not None
    assert summary.held_out_accuracy > 0.9
    assert summary.logprob_gap_max is not None
    assert summary.logprob_gap_max < 1e-4
    run.assert_adds_up()
    metrics = run.directory.read_metrics()
    assert {line["reward"] for line in metrics} == {0.0}
    assert all(line["reward/seat_0"] == -line["reward/seat_1"] for line in metrics)
    assert metrics[-1]["num_trajectories"] == 256, "of two seats in 128 episodes"
    assert {tuple(turn["seat"] for turn in row["turns"]) for row in samples(run)} == {(0, 1)}


@pytest.mark.long("trains as long as two seats need")
def test_seats_that_share_their_rewards_learn_nothing(start: StartRun) -> None:
    run = start("environment.options.shared=true", steps=25).end()
    assert run.code == 0, run.errors
    assert run.summary.held_out_accuracy is not None
    assert run.summary.held_out_accuracy < UNTRAINED


@pytest.mark.long("tests/episodes keep the seats of episodes as well")
def test_episodes_of_a_killed_rollout_go_on_with_their_seats(start: StartRun) -> None:
    run = start("evaluation.at_start=false", "evaluation.at_end=false", "evaluation.every_versions=0", steps=6)
    run.until(lambda: run.steps_done() >= 2 and run.units_without_result() >= 64)
    run.kill_node("rollout-0")
    run.end()
    assert run.code == 0, run.errors
    run.assert_adds_up()
