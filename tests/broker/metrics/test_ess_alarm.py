from typing import Any

import pytest

from asyncrl.broker.metrics.ess_alarm import STEPS, EssAlarm, advice
from asyncrl.config.config import Config
from asyncrl.config.run_file import decode


def a_config(warn: float = 0.5, **sections: Any) -> Config:
    plain = {"model": {"path": "m"}, "data": {"train": "t"}, "algorithm": {"ess_warn": warn}}
    return decode(plain | sections)


def lines(*sizes: float | None) -> list[dict[str, Any]]:
    return [{"step": step, "ess": size} for step, size in enumerate(sizes)]


def alarms(alarm: EssAlarm, *sizes: float | None) -> list[int]:
    """Steps at which it warns."""
    return [line["step"] for line in lines(*sizes) if alarm.check(line)]


def test_it_warns_when_the_mean_of_ten_steps_falls_below_the_bound() -> None:
    alarm = EssAlarm(a_config())
    said = [alarm.check(line) for line in lines(*[0.9] * STEPS, *[0.099] * STEPS)]
    first = next(place for place, fields in enumerate(said) if fields)

    assert first == STEPS + 5 - 1, "five steps of .9 and five of .099 have a mean just below .5"
    assert {key: said[first][key] for key in ("step", "ess", "bound")} == {"step": 14, "ess": 0.4995, "bound": 0.5}
    assert sum(map(bool, said)) == 1, "once for each fall"


def test_a_few_low_steps_raise_no_alarm() -> None:
    assert alarms(EssAlarm(a_config()), *[0.9] * STEPS, 0.01, 0.01, 0.01, *[0.9] * STEPS) == []
    assert alarms(EssAlarm(a_config()), *[0.1] * (STEPS - 1)) == [], "the first steps are no mean yet"


def test_it_warns_again_only_after_the_mean_has_come_halfway_back() -> None:
    low, half, high = [0.1] * STEPS, [0.7] * STEPS, [0.9] * STEPS

    assert len(alarms(EssAlarm(a_config()), *low, *half, *low)) == 1
    assert len(alarms(EssAlarm(a_config()), *low, *high, *low)) == 2


def test_steps_without_a_number_are_passed_over() -> None:
    for nothing in (None, float("nan")):
        assert alarms(EssAlarm(a_config()), *[0.1] * (STEPS - 1), nothing, 0.1) == [STEPS]
    assert EssAlarm(a_config()).check({"step": 0}) == {}


def test_a_restarted_broker_goes_on_where_it_was() -> None:
    earlier = lines(*[0.1] * STEPS)

    assert EssAlarm(a_config(), earlier).check({"step": STEPS, "ess": 0.1}) == {}
    assert EssAlarm(a_config(), earlier[:-1]).check({"step": STEPS - 1, "ess": 0.1})


@pytest.mark.parametrize(("warn", "warned"), [(0.0, []), (0.05, []), (0.2, [STEPS - 1])])
def test_the_bound_is_a_setting_and_0_never_warns(warn: float, warned: list[int]) -> None:
    assert alarms(EssAlarm(a_config(warn)), *[0.1] * STEPS) == warned


def test_the_advice_names_the_settings_that_matter_in_this_run() -> None:
    stale = advice(a_config(schedule={"staleness": 16}))
    assert "lower schedule.staleness (now 16), or lower trainer.lr" in stale
    assert "mask_divergent" in stale
    assert "fewer updates" not in stale
    fresh = advice(a_config(schedule={"staleness": 0}, trainer={"mini_batches": 4}))
    assert "staleness" not in fresh
    assert "fewer updates per batch (trainer.epochs and mini_batches, now 4)" in fresh
    masked = a_config(algorithm={"correction": {"mask_divergent": 0.1}})
    assert "mask_divergent" not in advice(masked)
