"""Steps and versions of the simulated trainer."""

from itertools import pairwise

import pytest

from tests.plan.plans import a_plan, finished


def test_steps_follow_one_another_and_take_as_long_as_their_tokens() -> None:
    steps = finished(a_plan({"rollout.prompt_tokens": 50}), steps=3).trainer.done
    assert [step.step for step in steps] == [0, 1, 2]
    assert [step.ended_s - step.began_s for step in steps] == pytest.approx([6.0] * 3)  # 4 x 150 tokens at 100 / s
    assert all(before.ended_s <= after.began_s for before, after in pairwise(steps))


def test_a_version_contains_the_steps_of_one_publish() -> None:
    steps = finished(a_plan({"schedule.steps_per_publish": 2}), steps=4).trainer.done
    assert [step.policy_version for step in steps] == [0, 0, 1, 1]


def test_the_last_step_is_published_even_if_it_fills_no_publish() -> None:
    simulation = finished(a_plan({"schedule.steps_per_publish": 2}), steps=3)
    assert simulation.cluster.scheduler.transfers.live_version == 2


def test_a_blocking_publish_delays_the_next_step() -> None:
    changes = {"staleness": 1.0, "trainer.speeds": [{"devices": 1, "tokens_per_s": 20}], "publish.seconds": 3.0}
    overlapping = finished(a_plan(changes), steps=4).trainer.done
    blocking = finished(a_plan(changes | {"publish.blocks_trainer": True}), steps=4).trainer.done
    assert overlapping[2].began_s - overlapping[1].ended_s == pytest.approx(0.0)
    assert blocking[2].began_s - blocking[1].ended_s == pytest.approx(3.0)
