"""A plan fitted to what a run was seen to do has the pace of its engines."""

import pytest

from asyncrl.config.sections.schedule import AUTO_START
from asyncrl.plan.fit import UNKNOWN_SHARE, Sampling, decode_seconds, fit
from asyncrl.plan.inputs import inputs
from tests.plan.workloads import recorded, seen, with_staleness, workload


def stretch(steps: float, tokens: float) -> Sampling:
    """A step takes 20 ms, and 1 ms more for each completion in it."""
    return Sampling(0.02 * steps + 0.001 * tokens, steps, tokens)


def test_the_fixed_part_of_a_step_is_told_from_that_of_each_completion() -> None:
    assert decode_seconds([stretch(100, 800), stretch(300, 600), stretch(50, 1600)]) == pytest.approx((0.02, 0.001))


def test_stretches_of_equally_many_completions_tell_no_difference_and_keep_their_sum() -> None:
    fixed_s, each_s = decode_seconds([stretch(100, 800), stretch(200, 1600)])
    assert fixed_s == pytest.approx(UNKNOWN_SHARE * 0.028)
    assert fixed_s + 8 * each_s == pytest.approx(0.028)


def test_no_part_is_negative() -> None:
    steeper = [Sampling(1.0, 100, 100), Sampling(9.0, 100, 800)]
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
