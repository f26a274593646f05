"""A small model learns a task of several turns, and nothing where the environment is of no use."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncrl.broker.ledger.records import Reissued
from tests.integration.conftest import StartRun, ToyRun, samples, starting_runs

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


@pytest.mark.long("trains until it has learned")
def test_a_small_model_learns_to_look_instead_of_guessing(start: StartRun) -> None:
    run = start(steps=25).end()
    assert_learned(run)
    first, *_, last = run.directory.read_metrics()
    assert first["turns_mean"] < last["turns_mean"]
    assert last["branches_mean"] == 1


@pytest.mark.long("trains until it has learned")
def test_with_other_amounts_in_the_boxes_it_stays_at_guessing(start: StartRun) -> None:
    run = start("environment.options.swapped=true", steps=25).end()
    assert run.code == 0, run.errors
    rewards = [metrics["reward"] for metrics in run.directory.read_metrics()]
    assert sum(rewards) / len(rewards) < GUESSING
    assert run.summary.held_out_accuracy is not None
    assert run.summary.held_out_accuracy < GUESSING


@pytest.mark.long("trains until it has learned")
def test_it_learns_over_summaries_and_with_looks_that_fail(start: StartRun) -> None:
    run = start("environment.options.compact_every=4", "environment.options.flaky=0.05", steps=30).end()
    assert_learned(run)
    assert run.directory.read_metrics()[-1]["branches_mean"] > 2


@pytest.mark.long("trains until it has learned")
def test_an_agent_program_teaches_it_over_http(hidden_sums: Path, start: StartRun) -> None:
    """Its summaries begin new contexts, as those of the environment do."""
    agent = [f"environment.function={hidden_sums}/hidden_sums_agent.py:solve", "environment.options.compact_every=4"]
    run = start(*agent, "evaluation.every_versions=20", steps=20).end()
    assert_learned(run)
    assert run.directory.read_metrics()[-1]["branches_mean"] > 2


@pytest.mark.long("trains until it has learned")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
def test_a_plain_program_of_any_dialect_teaches_it(hidden_sums: Path, start: StartRun, dialect: str, seed: int) -> None:
    agent = [f"environment.function={hidden_sums}/hidden_sums_agent.py:solve", f"environment.options.dialect={dialect}"]
    assert_learned(start(*agent, f"run.seed={seed}", "evaluation.every_versions=25", steps=25).end())


@pytest.mark.long("trains until it has learned")
@pytest.mark.parametrize("gives_up_after", [13, 100], ids=["gives up at the limit", "dies at the limit"])
def test_a_program_that_a_limit_ends_learns_as_one_that_gives_up(
    hidden_sums: Path, start: StartRun, gives_up_after: int
) -> None:
    agent = f"environment.function={hidden_sums}/hidden_sums_agent.py:solve"
    limits = ["environment.max_turns=13", f"environment.options.max_turns={gives_up_after}"]
    run = start(agent, *limits, "evaluation.every_versions=25", steps=25).end()
    assert_learned(run)
    assert run.summary.groups_failed == 0


@pytest.mark.long("makes a model that knows the task, for a minute")
def test_a_command_is_run_for_each_episode(hidden_sums: Path, start: StartRun) -> None:
    command = json.dumps([sys.executable, "-I", "-S", str(hidden_sums / "hidden_sums_agent.py")])
    few = ["schedule.groups_per_step=2", "schedule.group_size=4", "evaluation.max_prompts=8", "rollout.episodes=8"]
    program = ["environment.function=", f"environment.command={command}"]
    run = start(*program, *few, "trainer.warmup_steps=1", steps=2).end()
    assert run.code == 0, run.errors
    run.assert_adds_up()
    assert [row["num_turns"] > 0 for row in samples(run)] == [True] * 16
    assert {row["reward"] for row in samples(run)} <= {0.0, 1.0}


@pytest.mark.long("tests/episodes keep episodes as well")
def test_no_episode_of_a_killed_rollout_begins_anew(start: StartRun) -> None:
    """Their turns are replayed, and the boxes must answer as they did."""
    run = start("evaluation.at_start=false", "evaluation.at_end=false", "evaluation.every_versions=0", steps=10)
    run.until(lambda: run.steps_done() >= 3 and run.units_without_result() >= 64)
    run.kill_node("rollout-0")
    run.end()
    assert run.code == 0, run.errors
    run.assert_adds_up()
    reissued = [record for record in run.records() if isinstance(record, Reissued)]
    assert {(record.cause, record.num_tokens) for record in reissued} == {("node_lost", 0)}
