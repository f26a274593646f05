"""A run's times and events become shares and a bottleneck."""

import pytest

from asyncrl.errors import LedgerError
from asyncrl.observe.run_record import RunRecord
from asyncrl.observe.times import NodeTimes, TimesLine
from asyncrl.observe.why.explanation import explain


def a_record(*lines: TimesLine) -> RunRecord:
    return RunRecord(
        name="mine",
        config={"schedule.staleness": 0.0, "schedule.groups_per_step": 4},
        summary=None,
        metrics=[{"step": step} for step in range(3)],
        events=[],
        pictured=[],
        times=list(lines),
        notes=[],
    )


def line(step: int, **trainer: float) -> TimesLine:
    nodes = {
        "trainer-0": NodeTimes("trainer", {name.replace("_", " "): seconds for name, seconds in trainer.items()}),
        "rollout-0": NodeTimes("rollout", {"sampling": 0.5, "waiting for the trainer": 0.5}, 10),
    }
    return TimesLine(step, float(step), 1.0, nodes)


def test_shares_are_those_of_the_steady_part() -> None:
    found = explain(a_record(line(0, loading=1.0), line(1, training=0.75, waiting_for_sampling=0.25)))

    assert (found.steps, found.steady_s) == (3, 1.0)
    assert found.roles == {
        "trainer": {"training": 0.75, "waiting for sampling": 0.25},
        "rollout": {"sampling": 0.5, "waiting for the trainer": 0.5},
    }
    assert found.nodes["rollout-0"] == found.roles["rollout"]
    assert found.diagnosis is not None
    assert found.diagnosis.bottleneck == "trainer"


def test_the_setting_to_change_is_named_with_its_value() -> None:
    found = explain(a_record(line(0), line(1, training=0.25, waiting_for_sampling=0.75)))
    assert found.diagnosis is not None
    assert (found.diagnosis.bottleneck, found.diagnosis.share) == ("window", 0.75)
    assert found.diagnosis.setting == "raise schedule.staleness, which is 0"


@pytest.mark.parametrize(
    ("bind", "setting"),
    [
        ("tcp://127.0.0.1:0", "raise schedule.steps_per_publish"),
        (
            "tcp://10.0.0.1:7000",
            "raise schedule.steps_per_publish, set weights.delta, or use a faster network (weights.interface)",
        ),
    ],
)
def test_a_faster_network_is_offered_where_there_is_one(bind: str, setting: str) -> None:
    record = a_record(line(0), line(1, training=0.25, publishing=0.75))
    record.config["broker.bind"] = bind
    found = explain(record)
    assert found.diagnosis is not None
    assert (found.diagnosis.bottleneck, found.diagnosis.setting) == ("publishing", setting)


def test_a_run_without_a_step_has_no_bottleneck() -> None:
    record = a_record(line(-1, publishing=1.0))
    record.metrics.clear()
    assert explain(record).diagnosis is None


def test_a_run_without_times_is_told_so() -> None:
    with pytest.raises(LedgerError, match=r"the run mine has no times\.jsonl: it has not trained a step yet"):
        explain(a_record())
