"""Steps of an engine, found from its completions alone."""

import pytest

from asyncrl.rollout.decode_steps import DecodeSteps


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_completion_alone_takes_a_step_for_each_token() -> None:
    clock = Clock()
    steps = DecodeSteps(clock)
    began = steps.begin()
    clock.now_s = 2.0
    steps.end(began, 50)
    assert steps.number == pytest.approx(50)


def test_completions_that_run_together_share_their_steps() -> None:
    clock = Clock()
    steps = DecodeSteps(clock)
    began = [steps.begin() for _ in range(4)]
    clock.now_s = 2.0
    for each in began:
        steps.end(each, 50)
    assert steps.number == pytest.approx(50)


def test_one_that_goes_on_alone_takes_the_further_steps() -> None:
    """Both run for 1 s with 10 steps a second; then one runs alone for 2 s, also with 10 steps a second."""
    clock = Clock()
    steps = DecodeSteps(clock)
    short, long = steps.begin(), steps.begin()
    clock.now_s = 1.0
    steps.end(short, 10)
    clock.now_s = 3.0
    steps.end(long, 30)
    assert steps.number == pytest.approx(30)


def test_one_of_unknown_length_counts_no_steps_and_neither_does_one_without_time() -> None:
    clock = Clock()
    steps = DecodeSteps(clock)
    steps.end(steps.begin(), 5)
    began = steps.begin()
    clock.now_s = 1.0
    steps.end(began, 0)
    assert steps.number == 0.0


def test_seconds_without_a_completion_count_for_none() -> None:
    clock = Clock()
    steps = DecodeSteps(clock)
    clock.now_s = 100.0
    began = steps.begin()
    clock.now_s = 101.0
    steps.end(began, 10)
    assert steps.number == pytest.approx(10)
