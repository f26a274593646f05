"""A plan fitted to a run has its step time, and says what changes would bring."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.observe.run_record import RunRecord
from asyncrl.observe.times import NodeTimes, TimesLine
from asyncrl.plan.forecast import forecast

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


def a_run(folder: Path, *, sampling_s: float, training_s: float, grading_s: float = 0.0) -> RunRecord:
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
        metrics=[{"step": step, "tokens": 800.0, "receive_s": 0.0, "pause_s": 0.0} for step in range(STEPS)],
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
    found = forecast(a_run(tmp_path, sampling_s=2.0, training_s=1.0), a_config(), tmp_path)
    assert found is not None
    assert found.measured_s == pytest.approx(3.0)
    assert found.fitted_s == pytest.approx(3.0, rel=0.15)


def test_overlapping_sampling_and_training_brings_up_to_the_longer_of_the_two(tmp_path: Path) -> None:
    found = gains(a_run(tmp_path, sampling_s=2.0, training_s=2.0), tmp_path)
    assert found["schedule.staleness = 1"] == pytest.approx(2.0, rel=0.15)
    assert next(iter(found)) == "schedule.staleness = 1", "the largest comes first"


def test_a_faster_trainer_brings_nothing_where_it_hardly_trains(tmp_path: Path) -> None:
    found = gains(a_run(tmp_path, sampling_s=4.0, training_s=0.1), tmp_path)
    assert found["a trainer twice as fast"] == pytest.approx(1.0, abs=0.05)


def test_slow_rewards_are_part_of_the_plan_and_faster_ones_a_gain(tmp_path: Path) -> None:
    found = gains(a_run(tmp_path, sampling_s=0.1, training_s=0.1, grading_s=4.0), tmp_path)
    assert next(iter(found)) == "rewards twice as fast"
    assert found["rewards twice as fast"] == pytest.approx(2.0, rel=0.1)
    assert found["one more rollout"] == pytest.approx(1.0, abs=0.05)


def test_a_run_whose_verdicts_nobody_counted_has_no_gain_of_rewards(tmp_path: Path) -> None:
    record = a_run(tmp_path, sampling_s=1.0, training_s=1.0)
    record.times[:] = [replace(line, verdicts=0) for line in record.times]
    assert "rewards twice as fast" not in gains(record, tmp_path)


def test_shared_devices_have_no_plan(tmp_path: Path) -> None:
    assert forecast(a_run(tmp_path, sampling_s=1.0, training_s=1.0), a_config(colocated=True), tmp_path) is None


def test_a_run_without_samples_has_none(tmp_path: Path) -> None:
    record = a_run(tmp_path, sampling_s=1.0, training_s=1.0)
    assert forecast(record, a_config(), tmp_path / "samples") is None


def test_a_run_of_one_step_has_none(tmp_path: Path) -> None:
    record = a_run(tmp_path, sampling_s=1.0, training_s=1.0)
    del record.times[1:]
    assert forecast(record, a_config(), tmp_path) is None


def test_a_run_that_no_plan_describes_has_no_gains(tmp_path: Path) -> None:
    record = a_run(tmp_path, sampling_s=1.0, training_s=1.0)
    record.times[:] = [TimesLine(line.step, line.time_s, 10 * line.span_s, line.nodes) for line in record.times]
    found = forecast(record, a_config(), tmp_path)
    assert found is not None
    assert not found.is_close
    assert found.gains == []
