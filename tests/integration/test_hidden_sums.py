"""A small model learns a task of several turns, and nothing where the environment is of no use."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from asyncrl.toy.models import make_hidden_sums
from tests.integration.conftest import StartRun, ToyRun, starting_runs

ROOT = Path(__file__).parents[2]
GUESSING = 0.12
"""Greatest share of right answers of a policy that cannot see the amounts; the best constant guess has .09."""


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the model of the hidden sums, which takes a minute, its data, its run file and its environments."""
    folder = tmp_path_factory.mktemp("taught")
    make_hidden_sums(folder, report=lambda _: None)
    conf = (ROOT / "conf" / "hidden-sums.toml").read_text()
    (folder / "toy.toml").write_text(conf.replace("cache/hidden-sums", str(folder)).replace("examples", str(folder)))
    for name in ("hidden_sums.py", "hidden_sums_agent.py"):
        shutil.copy(ROOT / "examples" / name, folder)
    return folder


@pytest.fixture
def start(taught: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartRun]:
    with starting_runs(taught, tmp_path_factory) as start:
        yield start


def assert_learned(run: ToyRun) -> None:
    assert run.code == 0, run.errors
    summary = run.summary
    assert summary.base_accuracy is not None
    assert summary.base_accuracy <= 0.15
    assert summary.held_out_accuracy is not None
    assert summary.held_out_accuracy >= 0.9
    assert summary.logprob_gap_max is not None
    assert summary.logprob_gap_max < 1e-4
    run.assert_adds_up()


def samples(run: ToyRun) -> list[dict[str, Any]]:
    """Trained trajectories, those of each step together."""
    return [row for file in sorted(run.directory.samples.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]


@pytest.mark.slow
def test_a_small_model_learns_to_look_instead_of_guessing(start: StartRun) -> None:
    assert_learned(start(steps=25).end())


@pytest.mark.slow
def test_with_other_amounts_in_the_boxes_it_stays_at_guessing(start: StartRun) -> None:
    run = start("environment.options.swapped=true", steps=25).end()
    assert run.code == 0, run.errors
    rewards = [metrics["reward"] for metrics in run.directory.read_metrics()]
    assert sum(rewards) / len(rewards) < GUESSING
    assert run.summary.held_out_accuracy is not None
    assert run.summary.held_out_accuracy < GUESSING


@pytest.mark.slow
def test_it_learns_over_summaries_and_with_looks_that_fail(start: StartRun) -> None:
    assert_learned(start("environment.options.compact_every=4", "environment.options.flaky=0.05", steps=30).end())


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["environment.options.compact_every=4"]], ids=["whole", "summaries"])
def test_an_agent_program_teaches_it_over_http(taught: Path, start: StartRun, options: list[str]) -> None:
    assert_learned(start(f"environment.function={taught}/hidden_sums_agent.py:solve", *options, steps=25).end())
