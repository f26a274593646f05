from typing import Any

import pytest

from asyncrl.broker.metrics.gap_alarm import MIN_TOKENS, GapAlarm
from asyncrl.config.config import Config
from asyncrl.config.run_file import decode


def a_config(dtype: str = "float32", warn: float = 0.0) -> Config:
    return decode(
        {
            "model": {"path": "m", "dtype": dtype},
            "data": {"train": "t"},
            "trainer": {"logprob_gap_warn": warn},
        }
    )


def a_line(step: int, mean: float | None, tokens: int = MIN_TOKENS) -> dict[str, Any]:
    return {"step": step, "logprob_gap_mean": mean, "logprob_gap_max": 1.0, "logprob_gap_tokens": tokens}


def test_one_warning_a_run_says_what_to_check() -> None:
    alarm = GapAlarm(a_config())

    assert alarm.check({"step": 0}) == {}
    assert alarm.check(a_line(1, 2e-6)) == {}
    said = alarm.check(a_line(2, 0.3))
    assert (said["step"], said["logprob_gap_mean"], said["bound"]) == (2, 0.3, 1e-4)
    assert "processed_logprobs" in str(said["advice"])
    assert alarm.check(a_line(3, 0.3)) == {}


def test_a_restarted_broker_does_not_warn_again() -> None:
    assert GapAlarm(a_config(), [a_line(2, 0.3)]).check(a_line(3, 0.3)) == {}
    assert GapAlarm(a_config(), [a_line(2, 1e-6), a_line(3, None)]).check(a_line(4, 0.3))


@pytest.mark.parametrize(
    ("config", "mean", "is_said"),
    [
        (a_config("bfloat16"), 0.05, False),
        (a_config("bfloat16"), 0.2, True),
        (a_config(warn=0.5), 0.3, False),
        (a_config("bfloat16", warn=0.01), 0.02, True),
    ],
)
def test_the_bound_is_the_dtypes_unless_one_is_set(config: Config, mean: float, is_said: bool) -> None:
    assert bool(GapAlarm(config).check(a_line(0, mean))) == is_said


def test_a_few_tokens_raise_no_alarm() -> None:
    assert GapAlarm(a_config()).check(a_line(0, 0.3, tokens=MIN_TOKENS - 1)) == {}
