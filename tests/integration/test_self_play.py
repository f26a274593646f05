"""Two seats of one policy agree on a code, and find none if nobody is rewarded for listening."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import ROOT, StartRun, samples, starting_runs

CHANCE = 0.6
"""Greatest share of names that are understood without a code: one of two is right by chance."""


@pytest.fixture(scope="module")
def signals(hidden_sums: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the run file of the signals, on the model of the hidden sums."""
    folder = tmp_path_factory.mktemp("signals")
    conf = (ROOT / "conf" / "self-play.toml").read_text()
    (folder / "toy.toml").write_text(
        conf.replace("cache/hidden-sums", str(hidden_sums)).replace("examples", str(folder))
    )
    shutil.copy(ROOT / "examples" / "signals.py", folder)
    return folder


@pytest.fixture
def start(signals: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartRun]:
    with starting_runs(signals, tmp_path_factory) as start:
        yield start


@pytest.mark.slow("trains until two seats understand each other")
def test_two_seats_agree_on_a_code(start: StartRun) -> None:
    run = start(steps=40).end()
    assert run.code == 0, run.errors
    summary = run.summary
    assert summary.base_accuracy is not None
    assert summary.base_accuracy < CHANCE
    assert summary.held_out_accuracy is not None
    assert summary.held_out_accuracy > 0.9
    assert summary.logprob_gap_max is not None
    assert summary.logprob_gap_max < 1e-4
    run.assert_adds_up()
    last = run.directory.read_metrics()[-1]
    assert last["reward/seat_0"] > 0.9
    assert last["reward/seat_1"] > 0.9
    assert last["num_trajectories"] > 500, "of two seats in 256 episodes"
    assert {tuple(turn["seat"] for turn in row["turns"]) for row in samples(run)} == {(0,), (0, 1)}


@pytest.mark.long("trains as long as two seats need")
def test_a_speaker_that_is_rewarded_alone_is_not_understood(start: StartRun) -> None:
    run = start("environment.options.paid=speaker", steps=40).end()
    assert run.code == 0, run.errors
    assert run.summary.held_out_accuracy is not None
    assert run.summary.held_out_accuracy < CHANCE


@pytest.mark.long("tests/episodes keep the seats of episodes as well")
def test_episodes_of_a_killed_rollout_go_on_with_their_seats(start: StartRun) -> None:
    run = start("evaluation.at_start=false", "evaluation.at_end=false", "evaluation.every_versions=0", steps=6)
    run.until(lambda: run.steps_done() >= 2 and run.units_without_result() >= 64)
    run.kill_node("rollout-0")
    run.end()
    assert run.code == 0, run.errors
    run.assert_adds_up()
