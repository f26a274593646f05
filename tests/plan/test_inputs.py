"""Lengths and speeds derived from a plan."""

import math

import pytest

from asyncrl.errors import ConfigError
from asyncrl.plan.inputs import inputs
from asyncrl.plan.lengths import Lognormal
from asyncrl.plan.simulated.colocated import generate_s
from tests.plan.plans import a_plan, spread_out


def test_mean_median_and_p99_describe_one_lognormal():
    by_median = inputs(a_plan({"lengths": {"median": 100.0, "sigma": 0.5, "max_tokens": 10**6}})).lengths
    by_p99 = inputs(a_plan({"lengths": {"median": 100.0, "p99": 320.0, "max_tokens": 10**6}})).lengths
    by_mean = inputs(a_plan({"lengths": {"mean": 200.0, "sigma": 0.5, "max_tokens": 10**6}})).lengths
    assert isinstance(by_median, Lognormal)
    assert isinstance(by_p99, Lognormal)
    assert by_median.mu == by_p99.mu == pytest.approx(math.log(100))
    assert by_p99.sigma == pytest.approx(0.5, rel=1e-3)
    assert by_mean.mean == pytest.approx(200)


def test_lengths_are_fitted_to_what_the_baseline_took():
    # Constant lengths: 40 s of 0.1 s steps are 400 tokens.
    plan = a_plan({"lengths": {"synchronous_generate_s": 40.0}})
    assert inputs(plan).lengths.mean == pytest.approx(400, rel=2e-3)


def test_a_fit_of_uneven_lengths_comes_within_a_thousandth():
    plan = spread_out({"lengths": {"synchronous_generate_s": 60.0, "sigma": 0.8, "max_tokens": 10**4}})
    ready = inputs(plan)
    assert generate_s(plan, ready.lengths, ready.step_s) == pytest.approx(60, rel=2e-3)


def test_a_fit_that_is_out_of_reach_says_how_near_it_comes():
    plan = a_plan({"lengths": {"synchronous_generate_s": 1000.0, "max_tokens": 100}})
    with pytest.raises(ConfigError, match=r"is 1000 s, but .* takes 10 s at the nearest median, 100 tokens on average"):
        inputs(plan)


def test_training_seconds_of_groups_are_seconds_of_their_tokens():
    # Two groups of two completions of 100 tokens after prompts of 50 took 6 s.
    speeds = [{"devices": 1, "groups": 2, "seconds": 6.0}]
    training = inputs(a_plan({"trainer.speeds": speeds, "rollout.prompt_tokens": 50})).training
    assert training.seconds(600, 1) == pytest.approx(6)
    assert training.seconds(600, 2) == pytest.approx(3)
