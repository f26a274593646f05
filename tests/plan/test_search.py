"""The search for the best split."""

from typing import Any

import pytest

from asyncrl.plan.inputs import inputs
from asyncrl.plan.search import SearchResult, search
from tests.plan.plans import spread_out


def found(changes: dict[str, Any] | None = None) -> SearchResult:
    plan = spread_out({"search.publishes": 2, **(changes or {})})
    return search(plan, inputs(plan))


def test_the_best_is_no_slower_than_anything_tried_and_its_neighbours_were_tried():
    result = found({"devices": 16, "search.staleness": [0.0, 0.5]})
    fastest = min(outcome.step_s for outcome in result.tried)
    assert result.best.step_s <= 1.02 * fastest
    assert 4 in [outcome.rollout_devices for outcome in result.by_staleness()[0.0]], "the plan's own split"
    for outcomes in result.by_staleness().values():
        splits = [outcome.rollout_devices for outcome in outcomes]
        assert splits == sorted(set(splits))
        lowest = min(outcomes, key=lambda outcome: outcome.step_s).rollout_devices
        assert {near for near in (lowest - 1, lowest + 1) if 0 < near < 16} <= set(splits)


def test_a_slow_trainer_gets_more_of_the_devices():
    slow = found({"trainer.speeds": [{"devices": 4, "tokens_per_s": 30}]}).best
    fast = found({"trainer.speeds": [{"devices": 4, "tokens_per_s": 3000}]}).best
    assert slow.rollout_devices < fast.rollout_devices


def test_of_equally_fast_plans_the_least_stale_is_best():
    trainer_bound = {"trainer.speeds": [{"devices": 4, "tokens_per_s": 3}], "search.multiple_of": 4}
    result = found(trainer_bound | {"search.staleness": [2.0, 1.0]})
    assert [outcome.staleness for outcome in result.tried] == [1.0, 2.0]
    assert result.tried[0].step_s == pytest.approx(result.tried[1].step_s, rel=0.01)
    assert result.best.staleness == 1.0
