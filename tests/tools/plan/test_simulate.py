"""The search for the best split."""

from collections import Counter
from typing import Any

import pytest

from asyncrl.errors import BrokenInvariant
from asyncrl.tools.plan.plan_file import inputs
from asyncrl.tools.plan.simulate import SearchResult, Simulation, search
from asyncrl.tools.plan.simulated.cluster import token_staleness
from tests.tools.plan.plans import a_plan, finished, outcome, spread_out


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


# ── test simulate ─────────────────────────────────────────────────────────────────────────────
# Simulations against hand-computed results and general properties.


@pytest.mark.parametrize(
    ("changes", "step_s"),
    [
        ({}, 10 + 4),
        ({"publish.seconds": 3.0}, 10 + 4 + 3),
        ({"publish.pause_s": 2.0}, 10 + 4 + 2),
        ({"reward.seconds": 5.0}, 10 + 5 + 4),
        ({"reward.seconds": 5.0, "reward.at_once": 1}, 10 + 4 * 5 + 4),
        ({"reward.seconds": 5.0, "reward.at_once": 3}, 10 + 2 * 5 + 4),
        ({"rollout.prompt_tokens": 500}, 10 + 2 * 0.5 + 24),  # A group prefills once, and trains every prompt token.
        ({"rollout.slots": 2}, 20 + 4),
        ({"rollout.prompt_tokens": 2000}, 10 + 2 * 2 + 84),  # Longer than a run's prompts are by default.
    ],
)
def test_without_staleness_generation_and_training_add_up(changes, step_s):
    assert outcome(a_plan(changes)).step_s == pytest.approx(step_s)


@pytest.mark.parametrize(
    ("tokens_per_s", "changes", "step_s"),
    [
        (100, {}, 10),  # generation is slower
        (20, {}, 20),  # training is slower
        (20, {"publish.seconds": 3.0}, 20),  # a transfer overlaps the next step
        (20, {"publish.seconds": 3.0, "publish.blocks_trainer": True}, 23),
    ],
)
def test_one_step_off_costs_the_slower_of_generation_and_training(tokens_per_s, changes, step_s):
    speeds = [{"devices": 1, "tokens_per_s": tokens_per_s}]
    plan = a_plan({"staleness": 1.0, "trainer.speeds": speeds, **changes})
    assert outcome(plan).step_s == pytest.approx(step_s)


def test_the_faster_side_is_idle_for_the_rest_of_a_step():
    result = outcome(a_plan({"staleness": 1.0}))
    assert result.rollout_idle == pytest.approx(0)
    assert result.trainer_idle == pytest.approx(0.6)
    assert result.running == pytest.approx(4)
    assert result.tokens_per_s == pytest.approx(40)


def test_staleness_is_what_the_schedule_says():
    assert outcome(a_plan()).trajectory_staleness == {0: 1.0}
    slow = {"staleness": 1.0, "trainer.speeds": [{"devices": 1, "tokens_per_s": 20}]}
    assert outcome(a_plan(slow)).trajectory_staleness == {1: 1.0}


@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize("order", ["fifo", "windowed", "completion"])
def test_every_group_is_trained_exactly_once(partial, order):
    plan = spread_out({"schedule.partial_rollout": partial, "schedule.order": order})
    simulation = finished(plan, steps=12)
    assert simulation.cluster.scheduler.is_finished
    units = Counter(sample.unit for step in simulation.trainer.done for sample in step.trajectories)
    assert set(units.values()) == {1}
    assert {(unit.group_id, unit.index) for unit in units} == {(g, i) for g in range(12 * 8) for i in range(4)}
    assert not simulation.cluster.spans
    assert simulation.cluster.scheduler.window.peak <= plan.schedule.window


def test_spans_cover_every_token_and_never_go_back():
    plan = spread_out({"staleness": 1.0})
    simulation = finished(plan, steps=12)
    num_spans = set()
    for step in simulation.trainer.done:
        for sample, spans in zip(step.trajectories, step.spans, strict=True):
            edges = [0, *(span.end for span in spans)]
            assert [span.start for span in spans] == edges[:-1]
            assert edges[-1] == sample.summary.num_tokens
            assert [span.policy_version for span in spans] == sorted({span.policy_version for span in spans})
            assert spans[-1].policy_version <= step.policy_version
            num_spans.add(len(spans))
    assert {1, 2} <= num_spans
    assert sum(token_staleness(simulation.trainer.done).values()) == pytest.approx(1)


def test_without_partial_rollout_one_version_writes_a_whole_trajectory():
    plan = spread_out({"schedule.partial_rollout": False, "staleness": 1.0})
    simulation = finished(plan, steps=12)
    assert {len(spans) for step in simulation.trainer.done for spans in step.spans} == {1}


@pytest.mark.parametrize("on_straggler", ["wait", "reissue"])
def test_max_staleness_bounds_the_staleness_of_every_trajectory(on_straggler):
    changes = {"staleness": 1.0, "schedule.order": "completion", "schedule.on_straggler": on_straggler}
    assert outcome(spread_out({"staleness": 1.0, "schedule.order": "completion"})).staleness_max > 1
    result = outcome(spread_out(changes | {"schedule.max_staleness": 1}))
    assert result.staleness_max == 1


def test_groups_that_are_sampled_again_are_counted():
    changes = {"staleness": 1.0, "schedule.order": "completion", "schedule.max_staleness": 1}
    again = finished(spread_out(changes | {"schedule.on_straggler": "reissue"}), steps=12)
    assert again.cluster.num_restarted > 0
    assert finished(spread_out(changes), steps=12).cluster.num_restarted == 0


def test_groups_that_may_pass_a_slow_one_make_a_cluster_faster_and_keep_their_bound():
    fifo = outcome(spread_out({"staleness": 1.0, "schedule.steps_per_publish": 1}))
    windowed = spread_out({"staleness": 1.0, "schedule.steps_per_publish": 1, "schedule.order": "windowed"})
    result = outcome(windowed)
    assert result.step_s < fifo.step_s
    assert fifo.staleness_max <= 1 < result.staleness_max <= (windowed.schedule.most_versions_by_order or 0)


def test_the_same_seed_gives_the_same_answer():
    assert outcome(spread_out()) == outcome(spread_out())
    assert outcome(spread_out({"seed": 1})).step_s != outcome(spread_out()).step_s


def test_a_wider_window_a_faster_trainer_and_a_quicker_publish_do_not_slow_a_cluster_down():
    by_staleness = [outcome(spread_out({"staleness": s, "horizon.publishes": 12})).step_s for s in (0.0, 0.25, 1.0)]
    assert by_staleness == sorted(by_staleness, reverse=True)
    faster = {"trainer.speeds": [{"devices": 4, "tokens_per_s": 600}]}
    assert outcome(spread_out(faster)).step_s < outcome(spread_out()).step_s
    assert outcome(spread_out({"publish.seconds": 0.0})).step_s <= outcome(spread_out()).step_s


def test_partial_rollout_wastes_less_time_on_the_longest_completion():
    waiting = outcome(spread_out({"schedule.partial_rollout": False}))
    assert outcome(spread_out()).step_s < waiting.step_s


def test_recomputing_the_cache_costs_decoding_time():
    slow_prefill = {"rollout.prefill_tokens_per_s": 20.0, "schedule.order": "completion"}
    keep = outcome(spread_out(slow_prefill))
    assert keep.step_s < outcome(spread_out(slow_prefill | {"rollout.kv": "recompute"})).step_s


def test_a_cluster_that_stands_still_says_so_even_while_it_is_watched():
    plan = a_plan()
    simulation = Simulation(plan, inputs(plan), steps=2)
    simulation.watch(1.0)
    with pytest.raises(BrokenInvariant, match="stands still after 2 of 2 steps"):
        simulation.advance_to(3)
    assert simulation.timeline[0] == (0.0, 0)
