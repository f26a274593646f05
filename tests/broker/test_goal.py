"""A run ends before its last step once an evaluation meets ``run.stop_when``: after the steps that are taken."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from asyncrl import load_config
from asyncrl.broker.ledger.audit import audit
from asyncrl.broker.ledger.records import Admitted, AnyRecord, GoalMet, Measured, Taken, VersionLive
from asyncrl.cli.inspect import read_audit
from asyncrl.config.config import Config
from asyncrl.config.sections.run import Goal, goal_of
from asyncrl.config.sections.schedule import Schedule
from asyncrl.errors import ConfigError
from asyncrl.messages.trainer import Shortened
from asyncrl.records.run_directory import RunDirectory
from asyncrl.runtime.held_run import why_complete
from tests.broker.chaos import check_promises, run_to_the_end, start_all
from tests.broker.driver import Cluster, a_config
from tests.examples.conftest import load_example

GOAL = "accuracy >= 1"
"""What each version has in these runs: every completion is right."""


def until(goal: str, *, steps: int = 40, publish: int = 1, at_start: bool = False) -> Config:
    return a_config(
        run={"steps": steps, "stop_when": goal},
        data={"train": "train.jsonl", "held_out": "held_out.jsonl"},
        schedule={"groups_per_step": 2, "group_size": 2, "steps_per_publish": publish},
        evaluation={"every_versions": 1, "at_start": at_start},
        checkpoint={"every_steps": 0},
    )


def begun(config: Config, before: Cluster | None = None) -> Cluster:
    cluster = Cluster(config, num_held_out=2, before=before)
    start_all(cluster)
    return cluster


def ended(config: Config, before: Cluster | None = None) -> Cluster:
    cluster = begun(config, before)
    run_to_the_end(cluster, Random(0))
    return cluster


def goals(cluster: Cluster) -> list[GoalMet]:
    return [record for record in cluster.records if isinstance(record, GoalMet)]


def taken(cluster: Cluster) -> int:
    return sum(isinstance(record, Taken) for record in cluster.records)


@pytest.mark.parametrize("publish", [1, 3])
def test_it_trains_the_steps_that_are_taken_to_the_end_of_a_version_which_it_saves_and_evaluates(publish: int) -> None:
    cluster = ended(until(GOAL, publish=publish))

    (met,) = goals(cluster)
    assert (met.stop_when, met.policy_version) == (GOAL, 1)
    assert publish <= met.steps < 10
    assert met.steps % publish == 0
    assert taken(cluster) == met.steps == cluster.disk.checkpoints[-1]
    assert cluster.scheduler.evaluation.results[-1].policy_version == met.steps // publish
    check_promises(cluster)


def test_it_admits_no_more_than_the_window_had() -> None:
    cluster = ended(until(GOAL))
    (met,) = goals(cluster)
    admitted = sum(isinstance(record, Admitted) for record in cluster.records)
    assert admitted <= met.steps * 2 + cluster.config.schedule.window


@pytest.mark.parametrize("goal", ["", "accuracy > 1", "reward < 0"])
def test_without_a_goal_that_is_met_it_trains_every_step(goal: str) -> None:
    cluster = ended(until(goal, steps=4))
    assert (taken(cluster), goals(cluster), cluster.scheduler.has_met_goal) == (4, [], False)


def test_a_base_model_that_meets_it_leaves_nothing_to_train_but_what_was_taken() -> None:
    cluster = ended(until(GOAL, at_start=True))
    (met,) = goals(cluster)
    assert (met.policy_version, taken(cluster)) == (0, met.steps)


def test_a_broker_that_dies_keeps_the_end_and_tells_it_to_the_next_trainer() -> None:
    before = begun(until(GOAL))
    while not goals(before):
        before.actions()[0][1]()
    steps = goals(before)[0].steps

    cluster = ended(before.config, before)

    assert (taken(cluster), len(goals(cluster))) == (steps, 1)
    check_promises(cluster)


def test_a_trainer_hears_of_it_once_it_is_on_disk() -> None:
    cluster = begun(until(GOAL))
    while not any(isinstance(record, GoalMet) for record in cluster.uncommitted):
        cluster.actions()[0][1]()
    told = [outgoing.message for outgoing in cluster.unsent if isinstance(outgoing.message, Shortened)]
    assert told == [Shortened(cluster.scheduler.training.num_steps)]


def test_a_run_goes_on_with_another_goal_or_none() -> None:
    before = ended(until(GOAL, steps=12))
    assert taken(before) < 12

    cluster = ended(until("accuracy > 1", steps=12), before)

    assert (taken(cluster), cluster.scheduler.has_met_goal) == (12, False)
    accounts = audit(cluster.records, cluster.config.schedule)
    assert (accounts.problems, accounts.open, accounts.skipped) == ([], 0, 0)


# ── the ledger ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (GoalMet("accuracy >= .9", 1, 0), "the run was ended because version 1 meets 'accuracy >= .9', which no"),
        (GoalMet("reward >= 0", 0, 0), "the run was ended because version 0 meets 'reward >= 0', which no evaluation"),
        (GoalMet("accuracy", 0, 0), "run.stop_when is 'accuracy': expected a metric of evaluations"),
        (GoalMet("accuracy >= .9", 0, 0), "the run was ended after 0 steps, but 1 were taken"),
    ],
)
def test_an_end_that_no_evaluation_bears_out_is_a_problem_of_the_ledger(record: GoalMet, problem: str) -> None:
    records: list[AnyRecord] = [VersionLive(0, 0), Measured(0, 0.95, 20), Taken(0, []), record]
    assert any(problem in said for said in audit(records, Schedule(groups_per_step=2, group_size=2)).problems)


# ── the text ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("accuracy >= .95", Goal("accuracy", ">=", 0.95)),
        ("pass@4>60%", Goal("pass@4", ">", 0.6)),
        (" gsm8k/accuracy <= 1e-3 ", Goal("gsm8k/accuracy", "<=", 0.001)),
        ("length_mean < 200", Goal("length_mean", "<", 200.0)),
    ],
)
def test_a_goal_is_a_metric_a_sign_and_a_number(text: str, goal: Goal) -> None:
    assert goal_of(text) == goal


@pytest.mark.parametrize("text", ["accuracy", "accuracy = .9", "accuracy >= high", ">= .9", "accuracy >= .9 yes", "%"])
def test_another_text_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"run.stop_when is .*: expected a metric .* such as 'accuracy >= .95'"):
        goal_of(text)


def test_an_evaluation_without_the_metric_does_not_meet_it() -> None:
    goal = goal_of("pass@4 > 0")
    assert not goal.is_met({"accuracy": 1.0})
    assert not goal.is_met({"pass@4": float("nan")})
    assert goal.is_met({"pass@4": 0.1})


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"data": {"train": "train.jsonl"}}, "data.held_out, which is empty"),
        ({"evaluation": {"every_versions": 0}}, "evaluation.every_versions is 0"),
    ],
)
def test_a_goal_that_nothing_judges_is_refused(sections: dict[str, dict[str, object]], problem: str) -> None:
    data: dict[str, object] = {"train": "train.jsonl", "held_out": "held_out.jsonl"}
    with pytest.raises(ConfigError, match=problem):
        a_config(**{"run": {"steps": 4, "stop_when": GOAL}, "data": data} | sections)


# ── a run ─────────────────────────────────────────────────────────────────────────────────────


def test_a_run_that_met_its_goal_why_complete_and_its_files_add_up(toy: Path, tmp_path: Path) -> None:
    settings = [
        f"run.dir={tmp_path}",
        "run.steps=9",
        "run.stop_when=truncated <= 1",
        "schedule.groups_per_step=2",
        "schedule.group_size=2",
        "sampling.max_tokens=16",
        "trainer.warmup_steps=0",
        "evaluation.every_versions=1",
        "evaluation.at_start=false",
        "checkpoint.every_steps=1",
    ]
    directory = RunDirectory(asyncio.run(load_example("loop").main(toy / "toy.toml", *settings)))

    summary = directory.finished_summary()
    assert summary is not None
    assert (summary.goal, summary.steps_planned, summary.cause) == ("truncated <= 1", 9, "")
    assert 1 <= summary.steps < 9
    assert summary.held_out_accuracy is not None
    assert read_audit(directory.path).problems == []
    assert why_complete(directory.path, load_config(directory.config))
    assert not why_complete(directory.path, load_config(directory.config, "run.stop_when="))
