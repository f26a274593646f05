"""The staleness that a run, and a plan, choose by themselves."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.config.sections.schedule import AUTO_START
from asyncrl.records.history import StepHistory
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.run_record import RunRecord
from asyncrl.records.times import NodeTimes, TimesLine
from asyncrl.tools.plan.fit import (
    UNKNOWN_SHARE,
    Fit,
    StretchSampling,
    choice_of,
    choose_staleness,
    decode_seconds,
    fit,
    forecast,
)
from asyncrl.tools.plan.lengths import RecordedLengths
from asyncrl.tools.plan.plan_file import changed, inputs
from asyncrl.tools.plan.sections import Plan
from asyncrl.tools.plan.simulate import search, simulate
from asyncrl.tools.plan.simulated.rollout import colocated
from tests.tools.plan.plans import a_plan
from tests.tools.plan.workloads import PUBLISHED, followed, planned, published, recorded, seen, with_staleness, workload

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
    lengths = RecordedLengths([[100, 100]])
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


# ── test fit ──────────────────────────────────────────────────────────────────────────────────
# A plan fitted to what a run was seen to do has the pace of its engines.


def stretch(steps: float, tokens: float) -> StretchSampling:
    """A step takes 20 ms, and 1 ms more for each completion in it."""
    return StretchSampling(0.02 * steps + 0.001 * tokens, steps, tokens)


def test_the_fixed_part_of_a_step_is_told_from_that_of_each_completion() -> None:
    assert decode_seconds([stretch(100, 800), stretch(300, 600), stretch(50, 1600)]) == pytest.approx((0.02, 0.001))


def test_stretches_of_equally_many_completions_tell_no_difference_and_keep_their_sum() -> None:
    fixed_s, each_s = decode_seconds([stretch(100, 800), stretch(200, 1600)])
    assert fixed_s == pytest.approx(UNKNOWN_SHARE * 0.028)
    assert fixed_s + 8 * each_s == pytest.approx(0.028)


def test_no_part_is_negative() -> None:
    steeper = [StretchSampling(1.0, 100, 100), StretchSampling(9.0, 100, 800)]
    fixed_s, each_s = decode_seconds(steeper)
    assert fixed_s == 0.0
    assert each_s == pytest.approx(10 / 900)


@pytest.mark.slow("a run in virtual time")
@pytest.mark.parametrize("seed", range(3))
def test_the_step_time_and_the_pace_are_those_of_the_run(seed: int) -> None:
    plan = with_staleness(workload(seed), AUTO_START)
    fitted = fit(seen(plan, inputs(plan)), plan.schedule, recorded(plan))
    assert fitted.is_close
    assert fitted.step_s == pytest.approx(fitted.measured_s, rel=0.1)
    true, found = inputs(plan).step_s, inputs(fitted.plan, recorded(plan)).step_s
    assert found.at(plan.rollout.slots) == pytest.approx(true.at(plan.rollout.slots), rel=0.4)


# ── test forecast ─────────────────────────────────────────────────────────────────────────────
# A plan fitted to a run has its step time, and says what changes would bring.

STEPS, TOKENS, SIZE = 12, 100, 4


def a_config(**rollout: object) -> Config:
    """Steps of 2 groups of 4 trajectories, with 2 groups in the window."""
    return decode(
        {
            "model": {"path": "m"},
            "data": {"train": "t"},
            "schedule": {"groups_per_step": 2, "group_size": SIZE, "staleness": 0.0},
            "rollout": {"slots": 8, **rollout},
        }
    )


def forecast_a_run(folder: Path, *, sampling_s: float, training_s: float, grading_s: float = 0.0) -> RunRecord:
    """A synchronous run: a step samples 8 trajectories of 100 tokens, one node grades them, and then it trains."""
    for step in range(STEPS):
        group_ids = [2 * step + place // SIZE for place in range(2 * SIZE)]
        table = pa.table({"step": [step] * 8, "group_id": group_ids, "num_tokens": [TOKENS] * 8})
        pq.write_table(table, folder / f"step_{step:06d}.parquet")
    seconds = sampling_s + grading_s + training_s
    nodes = {
        "trainer-0": NodeTimes("trainer", {"training": training_s, "waiting for sampling": sampling_s}, 800),
        "rollout-0": NodeTimes(
            "rollout", {"sampling": sampling_s, "waiting for the trainer": training_s}, 800, decode_steps=TOKENS
        ),
        "reward-0": NodeTimes("reward", {"grading": grading_s, "waiting for sampling": sampling_s}),
    }
    return RunRecord(
        name="mine",
        config={},
        summary=None,
        step_history=StepHistory(
            {"step": step, "tokens": 800.0, "receive_s": 0.0, "pause_s": 0.0} for step in range(STEPS)
        ),
        events=[],
        pictured=[],
        times=[TimesLine(step, seconds * step, seconds, nodes, verdicts=8) for step in range(STEPS)],
        notes=[],
    )


def gains(record: RunRecord, folder: Path) -> dict[str, float]:
    found = forecast(record, a_config(), folder)
    assert found is not None
    assert found.is_close, found
    return {gain.change: gain.speedup for gain in found.gains}


def test_a_fitted_plan_has_the_step_time_of_the_run(tmp_path: Path) -> None:
    found = forecast(forecast_a_run(tmp_path, sampling_s=2.0, training_s=1.0), a_config(), tmp_path)
    assert found is not None
    assert found.measured_s == pytest.approx(3.0)
    assert found.fitted_s == pytest.approx(3.0, rel=0.15)


def test_overlapping_sampling_and_training_brings_up_to_the_longer_of_the_two(tmp_path: Path) -> None:
    found = gains(forecast_a_run(tmp_path, sampling_s=2.0, training_s=2.0), tmp_path)
    assert found["schedule.staleness = 1"] == pytest.approx(2.0, rel=0.15)
    assert next(iter(found)) == "schedule.staleness = 1", "the largest comes first"


def test_a_faster_trainer_brings_nothing_where_it_hardly_trains(tmp_path: Path) -> None:
    found = gains(forecast_a_run(tmp_path, sampling_s=4.0, training_s=0.1), tmp_path)
    assert found["a trainer twice as fast"] == pytest.approx(1.0, abs=0.05)


def test_slow_rewards_are_part_of_the_plan_and_faster_ones_a_gain(tmp_path: Path) -> None:
    found = gains(forecast_a_run(tmp_path, sampling_s=0.1, training_s=0.1, grading_s=4.0), tmp_path)
    assert next(iter(found)) == "rewards twice as fast"
    assert found["rewards twice as fast"] == pytest.approx(2.0, rel=0.1)
    assert found["one more rollout"] == pytest.approx(1.0, abs=0.05)


def test_a_run_whose_verdicts_nobody_counted_has_no_gain_of_rewards(tmp_path: Path) -> None:
    record = forecast_a_run(tmp_path, sampling_s=1.0, training_s=1.0)
    record.times[:] = [replace(line, verdicts=0) for line in record.times]
    assert "rewards twice as fast" not in gains(record, tmp_path)


def test_shared_devices_have_no_plan(tmp_path: Path) -> None:
    assert (
        forecast(forecast_a_run(tmp_path, sampling_s=1.0, training_s=1.0), a_config(colocated=True), tmp_path) is None
    )


def test_a_run_without_samples_has_none(tmp_path: Path) -> None:
    record = forecast_a_run(tmp_path, sampling_s=1.0, training_s=1.0)
    assert forecast(record, a_config(), tmp_path / "samples") is None


def test_a_run_of_one_step_has_none(tmp_path: Path) -> None:
    record = forecast_a_run(tmp_path, sampling_s=1.0, training_s=1.0)
    del record.times[1:]
    assert forecast(record, a_config(), tmp_path) is None


def test_a_run_that_no_plan_describes_has_no_gains(tmp_path: Path) -> None:
    record = forecast_a_run(tmp_path, sampling_s=1.0, training_s=1.0)
    record.times[:] = [TimesLine(line.step, line.time_s, 10 * line.span_s, line.nodes) for line in record.times]
    found = forecast(record, a_config(), tmp_path)
    assert found is not None
    assert not found.is_close
    assert found.gains == []
