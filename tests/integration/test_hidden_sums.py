"""A small model learns a task of several turns, and nothing where the environment is of no use."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import StartRun, ToyRun, starting_runs

GUESSING = 0.12
"""Greatest share of right answers of a policy that cannot see the amounts; the best constant guess has .09."""


@pytest.fixture
def start(hidden_sums: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartRun]:
    with starting_runs(hidden_sums, tmp_path_factory) as start:
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
def test_an_agent_program_teaches_it_over_http(hidden_sums: Path, start: StartRun, options: list[str]) -> None:
    assert_learned(start(f"environment.function={hidden_sums}/hidden_sums_agent.py:solve", *options, steps=25).end())
