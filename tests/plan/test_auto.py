"""The staleness that a run, and a plan, choose by themselves."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncrl.config.sections.schedule import AUTO_START
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.observe.times import NodeTimes, TimesLine
from asyncrl.plan.auto import choice_of, choose_staleness
from asyncrl.plan.fit import Fit
from asyncrl.plan.inputs import inputs
from asyncrl.plan.lengths import Recorded
from asyncrl.plan.plan_file import changed
from asyncrl.plan.search import search
from asyncrl.plan.sections import Plan
from asyncrl.plan.simulate import simulate
from asyncrl.plan.simulated.colocated import colocated
from tests.plan.plans import a_plan
from tests.plan.workloads import PUBLISHED, followed, planned, published, with_staleness, workload

CONFIG = """\
[model]
path = "m"
[data]
train = "t"
[schedule]
groups_per_step = 2
group_size = 4
staleness = "auto"
"""


def fitted(plan: Plan, measured_s: float | None = None) -> Fit:
    lengths = Recorded([[100, 100]])
    step_s = simulate(plan, inputs(plan, lengths)).step_s
    return Fit(plan, lengths, step_s if measured_s is None else measured_s, step_s)


def test_sampling_that_takes_as_long_as_training_is_worth_one_version() -> None:
    choice = choice_of(fitted(a_plan({"trainer.speeds": [{"devices": 1, "tokens_per_s": 40}]})))
    assert (choice.before, choice.staleness) == (0.0, 1.0)
    assert choice.predicted_s["1"] == pytest.approx(choice.predicted_s["0"] / 2, rel=0.05)
    assert "1 is the least that is about as fast as the fastest" in choice.reason


def test_a_trainer_that_takes_all_the_time_is_not_worth_any() -> None:
    slow = {"trainer.speeds": [{"devices": 1, "tokens_per_s": 0.1}], "schedule.staleness": 2.0}
    assert choice_of(fitted(a_plan(slow))).staleness == 0.0


def test_the_present_staleness_is_kept_where_the_plan_does_not_fit() -> None:
    choice = choice_of(fitted(a_plan({"schedule.staleness": 1.0}), measured_s=100.0))
    assert (choice.staleness, choice.predicted_s) == (1.0, {})
    assert choice.reason.startswith("no prediction: a step of the run takes 100 s, and one of a plan fitted to it ")


def test_what_a_run_would_refuse_is_not_tried() -> None:
    bounded = {"schedule.max_staleness": 1, "trainer.speeds": [{"devices": 1, "tokens_per_s": 40}]}
    assert list(choice_of(fitted(a_plan(bounded))).predicted_s) == ["0", "0.5", "1"]


def a_run(parent: Path, *, steps: int, changed_at: int | None = None) -> Path:
    """Sampling and training each take a second; with staleness 1 they overlap."""
    directory = RunDirectory.create(parent, "mine")
    directory.write_config(CONFIG)
    directory.samples.mkdir(exist_ok=True)
    seconds = {"training": 0.99, "waiting for sampling": 0.01}
    for step in range(steps):
        if step == changed_at:
            event = {"key": "schedule.staleness", "value": 1.0, "before": 0.0, "by": "auto", "time_s": float(step)}
            directory.append_event("setting.changed", **event)
        directory.append_metrics({"step": step, "tokens": 800.0, "time_s": step + 1.0, "receive_s": 0.0})
        nodes = {
            "trainer-0": NodeTimes("trainer", seconds, 800),
            "rollout-0": NodeTimes("rollout", {"sampling": 1.0}, 800, decode_steps=100),
        }
        directory.append_times(TimesLine(step, step + 1.0, 1.0, nodes))
        table = pa.table(
            {"step": [step] * 8, "group_id": [2 * step + i // 4 for i in range(8)], "num_tokens": [100] * 8}
        )
        pq.write_table(table, directory.samples / f"step_{step:06d}.parquet")
    return directory.path


def test_a_run_is_asked_by_its_folder(tmp_path: Path) -> None:
    choice = choose_staleness(a_run(tmp_path, steps=20))
    assert (choice.before, choice.staleness) == (AUTO_START, AUTO_START)
    assert choice.predicted_s["0"] == pytest.approx(2 * choice.predicted_s["1"], rel=0.1)


def test_steps_before_the_last_change_do_not_count(tmp_path: Path) -> None:
    choice = choose_staleness(a_run(tmp_path, steps=20, changed_at=18))
    assert choice.reason == "no step has been measured under the present settings yet"


@pytest.mark.slow("a run in virtual time")
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long("more seeds")) for seed in range(1, 8))]
)
def test_a_run_comes_to_a_staleness_near_the_best(seed: int) -> None:
    score = followed(workload(seed))
    assert score.of_better >= 0.98
    assert score.of_best >= 0.95


@pytest.mark.long("many more seeds and workloads")
def test_a_plan_finds_settings_near_the_best() -> None:
    score = planned(workload(4))
    assert score.of_better >= 0.98
    assert score.of_best >= 0.95


@pytest.mark.long("a search")
def test_where_asynchrony_lost_all_devices_work_in_turn() -> None:
    plan = published("nemo")
    ready = inputs(plan)
    in_turn = colocated(plan, ready.lengths, ready.step_s, ready.training).step_s
    ahead = simulate(with_staleness(plan, 1.0), ready).step_s
    assert in_turn == pytest.approx(225, rel=0.1)
    assert ahead == pytest.approx(244, rel=0.1)
    best = search(plan, ready).best
    assert (best.rollout_devices, best.staleness) == (plan.devices, 0.0)


@pytest.mark.long("a search")
def test_where_publishing_made_asynchrony_lose_it_publishes_less_often() -> None:
    plan = published("marin")
    ready = inputs(plan)
    in_turn = colocated(plan, ready.lengths, ready.step_s, ready.training).step_s
    often, seldom = (
        simulate(changed(plan, {"schedule.staleness": 1.0, "schedule.steps_per_publish": each}), ready).step_s
        for each in (1, 2)
    )
    assert 25 * in_turn == pytest.approx(250.5, rel=0.1)
    assert 25 * often == pytest.approx(339.5, rel=0.1)
    assert 25 * seldom == pytest.approx(256.4, rel=0.1)
    assert search(plan, ready).best.steps_per_publish > 1


@pytest.mark.long("many more seeds and workloads")
@pytest.mark.parametrize("name", [*PUBLISHED, *map(str, range(98))])
def test_settings_are_near_the_best_in_every_workload(name: str) -> None:
    plan = published(name) if name in PUBLISHED else workload(int(name))
    assert planned(plan).of_better >= 0.98
    assert followed(plan).of_better >= 0.98
