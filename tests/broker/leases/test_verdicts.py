"""Verdicts beyond a limit fail their trajectory alone."""

import math

from asyncrl.broker.leases.verdicts import VerdictLimits
from asyncrl.messages.reward import ScoredItem
from asyncrl.messages.trajectory import Unit
from tests.broker.driver import a_config

UNIT = Unit(0, 1)
METRICS = {f"metric {number}": 1.0 for number in range(60)}
HUGE = a_config(schedule={"groups_per_step": 200_000, "group_size": 2})


def test_a_verdict_within_the_limits_is_no_failure() -> None:
    assert VerdictLimits(a_config()).failure(ScoredItem(UNIT, 1.0, METRICS, 7)) is None


def test_a_reward_that_is_no_number_fails_and_may_be_tried_again() -> None:
    failed = VerdictLimits(a_config()).failure(ScoredItem(UNIT, math.nan, {}, 7))
    assert failed is not None
    assert (failed.unit, failed.lease_id, failed.stage, failed.retryable) == (UNIT, 7, "reward", True)
    assert failed.reason == "the reward is nan, expected a finite number of at most 1e+06 either way"


def test_a_verdict_that_a_large_step_has_no_room_for_fails_for_good() -> None:
    limits = VerdictLimits(HUGE)
    failed = limits.failure(ScoredItem(UNIT, 1.0, METRICS, 7))
    assert failed is not None
    assert not failed.retryable
    assert f"but at most {limits.max_bytes} are allowed where a step has 400000 trajectories" in failed.reason
