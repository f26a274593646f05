"""The baseline against hand-computed results."""

from typing import Any

import pytest

from asyncrl.plan.inputs import inputs
from asyncrl.plan.result import SimulationResult
from asyncrl.plan.simulated.colocated import colocated
from tests.plan.plans import a_plan


def baseline(changes: dict[str, Any] | None = None) -> SimulationResult:
    plan = a_plan(changes)
    ready = inputs(plan)
    return colocated(plan, ready.lengths, ready.step_s, ready.training)


def test_all_devices_generate_and_then_all_devices_train():
    result = baseline({"synchronous.other_s": 3.0})
    # 10 s on two replicas; 400 tokens at 200 tokens/s.
    assert result.step_s == pytest.approx(10 + 2 + 3)
    assert result.rollout_idle == pytest.approx(5 / 15)
    assert result.trainer_idle == pytest.approx(13 / 15)
    assert result.running == pytest.approx(2)


def test_the_baseline_generates_for_all_steps_of_a_version_at_once():
    # Four groups on two replicas of four slots: still 10 s, for two steps.
    assert baseline({"schedule.steps_per_publish": 2}).step_s == pytest.approx((10 + 4) / 2)


def test_an_asynchronous_cluster_is_compared_on_as_many_devices():
    assert baseline().devices == 2
