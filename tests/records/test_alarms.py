"""Alarms about learning become sentences: the last of each kind."""

from typing import Any

from asyncrl.records.alarms import Alarm, alarms


def test_the_last_alarm_of_each_kind_is_told_in_order_with_its_advice() -> None:
    events: list[dict[str, Any]] = [
        {"event": "clip.high", "step": 30, "clip_fraction": 0.12, "bound": 0.1, "advice": "lower trainer.lr"},
        {"event": "node.joined", "node": "a"},
        {"event": "signal.none", "step": 2, "reward": 0.0, "advice": "look"},
        {"event": "ess.low", "step": 20, "ess": 0.68, "bound": 0.7, "advice": "lower schedule.staleness"},
        {"event": "clip.high", "step": 90, "clip_fraction": 0.21, "bound": 0.1, "advice": "lower trainer.lr (now 1)"},
        {"event": "logprob_gap.exceeded", "step": 3.0, "logprob_gap_mean": 0.31, "advice": "check the engine"},
    ]

    assert alarms(events) == [
        Alarm("At step 2 no rewards of a group had differed for three steps; their mean was 0", "look", is_first=True),
        Alarm("At step 3 log-probs of rollouts and trainer differed by 0.31 nats", "check the engine"),
        Alarm("At step 20 the effective sample size of the tokens had fallen to 68 %", "lower schedule.staleness"),
        Alarm("At step 90 the loss clipped 21 % of the tokens", "lower trainer.lr (now 1)"),
    ]


def test_an_alarm_that_a_later_step_has_ended_is_told_no_more() -> None:
    raised = {"event": "signal.none", "step": 2, "reward": 1.0, "advice": "take harder ones"}
    ended = {"event": "signal.back", "step": 9}
    assert [len(alarms(events)) for events in ([raised], [raised, ended], [raised, ended, raised])] == [1, 0, 1]
