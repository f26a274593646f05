"""Whether a run learns, judged over made runs; and by an alarm, a state and `why` alike."""

from collections.abc import Callable
from typing import Any

import pytest

from asyncrl.records.alarms import RAISED_BY, alarms
from asyncrl.records.learning import FIRST_STEPS, PATIENCE, TROUBLES, Learning

Made = Callable[[int], dict[str, Any]]


def run(num_steps: int, made: Made) -> list[dict[str, Any]]:
    usual = {"zero_advantage_fraction": 0.5, "grad_norm": 0.4, "truncated": 0.1}
    return [usual | {"step": step} | made(step) for step in range(num_steps)]


def right(accuracy: float, **metrics: float) -> dict[str, float]:
    return {"accuracy": accuracy, "reward": accuracy, **metrics}


RUNS: dict[str, tuple[str, str, list[dict[str, Any]]]] = {
    "learning": ("learning", "", run(60, lambda step: right(0.1 + step / 100))),
    "slow, with a signal": ("learning", "", run(200, lambda step: right(0.3 + 0.02 * (step % 3)))),
    "two steps": ("unknown", "", run(2, lambda _: right(0.0, zero_advantage_fraction=1.0, grad_norm=0.0))),
    "all wrong": (
        "no signal",
        "100.0 % of the completions of the last 3 steps taught nothing, because all rewards of their group were equal; "
        "the mean reward was 0",
        run(3, lambda _: right(0.0, zero_advantage_fraction=1.0, grad_norm=0.0)),
    ),
    "little that differs": (
        "no signal",
        "92.5 % of the completions of the last 10 steps taught nothing, because all rewards of their group were equal; "
        "the mean reward was 0.6",
        run(40, lambda _: right(0.6, zero_advantage_fraction=0.925)),
    ),
    "no gradient": (
        "no signal",
        "most of the last 10 steps taught nothing, because their gradient was 0; the mean reward was 0.4",
        run(40, lambda _: right(0.4, grad_norm=0.0)),
    ),
    "all right from the first step on": (
        "no signal",
        "100.0 % of the completions of the last 10 steps taught nothing, because all rewards of their group were "
        "equal; the mean reward was 1",
        run(40, lambda _: right(1.0, zero_advantage_fraction=1.0)),
    ),
    "solved": (
        "solved",
        "97.0 % of the completions of the last 10 steps were right, so few groups can teach",
        run(80, lambda step: right(min(0.2 + step / 50, 0.97), zero_advantage_fraction=min(0.2 + step / 50, 0.95))),
    ),
    "collapsed": (
        "collapsed",
        "the mean accuracy of the last 10 steps has fallen to 4.0 %, from 62.0 % at best",
        run(80, lambda step: right(min(0.1 + step / 40, 0.62) if step < 50 else 0.04)),
    ),
    "collapsed to nothing": (
        "collapsed",
        "the mean accuracy of the last 10 steps has fallen to 0.0 %, from 62.0 % at best",
        run(80, lambda s: right(min(0.1 + s / 40, 0.62)) if s < 50 else right(0.0, zero_advantage_fraction=1.0)),
    ),
    "collapsed, by graded rewards": (
        "collapsed",
        "the mean reward of the last 10 steps has fallen to -1.5, from 2 at best",
        run(60, lambda step: {"accuracy": 0.0, "reward": min(step / 10, 2.0) if step < 40 else -1.5}),
    ),
    "a dip": ("learning", "", run(60, lambda step: right(0.5 if step < 40 else 0.4))),
    "cut, and learning": ("learning", "", run(60, lambda step: right(0.02 + step / 500, truncated=0.95))),
    "cut, and right all the same": ("learning", "", run(60, lambda _: right(0.48, truncated=0.93))),
    "cut, in the first steps": ("learning", "", run(PATIENCE - 1, lambda _: right(0.05, truncated=0.95))),
    "cut, and not learning": (
        "cut",
        "95.0 % of the completions of the last 10 steps were cut at their limit, and the mean accuracy has not risen",
        run(PATIENCE, lambda _: right(0.05, truncated=0.95)),
    ),
    "without metrics of learning": ("unknown", "", [{"step": step, "reward": 0.0} for step in range(30)]),
}


@pytest.mark.parametrize(("state", "because", "lines"), RUNS.values(), ids=RUNS)
def test_a_run_is_judged_by_its_signal_its_gradient_and_its_success(state, because, lines):
    found = Learning(lines).judgement
    assert (found.state, found.because) == (state, because)
    assert found.is_trouble == (state in TROUBLES)


@pytest.mark.parametrize("lines", [lines for *_, lines in RUNS.values()], ids=RUNS)
def test_an_event_that_was_raised_says_nothing_of_a_run_to_which_it_applies_no_more(lines):
    raised = [{"event": kind, "step": 2, "advice": f"do {kind}"} for kind in RAISED_BY.values()]
    judged = Learning(lines).judgement
    found = [(alarm.sentence, alarm.advice, alarm.is_first) for alarm in alarms(raised, lines)]
    told = f"{judged.because[:1].upper()}{judged.because[1:]}"
    assert found == ([(told, f"do {RAISED_BY[judged.state]}", True)] if judged.is_trouble else [])


def test_a_signal_is_back_when_there_is_enough_of_it_not_at_the_first_difference():
    lines = run(10, lambda _: right(0.0, zero_advantage_fraction=1.0))
    for equal, state in ((0.85, "no signal"), (0.79, "learning"), (0.88, "learning"), (0.95, "no signal")):
        lines += [{"step": 0, **right(0.1, zero_advantage_fraction=equal)}] * 10
        assert Learning(lines).judgement.state == state


def test_nan_and_null_are_no_numbers():
    lines = run(FIRST_STEPS, lambda _: right(float("nan"), grad_norm=float("nan"), truncated=None))  # type: ignore[arg-type]
    assert Learning(lines).judgement.state == "learning"
