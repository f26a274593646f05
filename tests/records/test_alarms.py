"""Alarms about learning become sentences: what the steps show by now, and the last of each other kind."""

from typing import Any

from asyncrl.records.alarms import Alarm, alarms


def test_trouble_that_the_steps_show_is_told_first_and_the_last_alarm_of_each_other_kind_in_order() -> None:
    events: list[dict[str, Any]] = [
        {"event": "clip.high", "step": 30, "clip_fraction": 0.12, "bound": 0.1, "advice": "lower trainer.lr"},
        {"event": "node.joined", "node": "a"},
        {"event": "ess.low", "step": 20, "ess": 0.68, "bound": 0.7, "advice": "lower schedule.staleness"},
        {"event": "clip.high", "step": 90, "clip_fraction": 0.21, "bound": 0.1, "advice": "lower trainer.lr (now 1)"},
        {"event": "logprob_gap.exceeded", "step": 3.0, "logprob_gap_mean": 0.31, "advice": "check the engine"},
    ]
    silent = [{"step": step, "zero_advantage_fraction": 1.0, "reward": 0.0} for step in range(9)]

    told = alarms(events, silent)

    assert told == [
        Alarm(
            "100.0 % of the completions of the last 9 steps taught nothing, because all rewards of their group were "
            "equal; the mean reward was 0",
            "",
            is_first=True,
        ),
        Alarm("At step 4 log-probs of rollouts and trainer differed by 0.31 nats", "check the engine"),
        Alarm("At step 21 the effective sample size of the tokens had fallen to 68 %", "lower schedule.staleness"),
        Alarm("At step 91 the loss clipped 21 % of the tokens", "lower trainer.lr (now 1)"),
    ]
    assert str(told[0]).endswith("the mean reward was 0.")
    assert str(told[-1]).endswith("21 % of the tokens: lower trainer.lr (now 1).")
    assert alarms(events, []) == told[1:]
