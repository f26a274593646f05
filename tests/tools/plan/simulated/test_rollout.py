"""The baseline against hand-computed results."""

from typing import Any

import pytest

from asyncrl.messages.rollout import Cancelled
from asyncrl.messages.trajectory import Span, Unit
from asyncrl.tools.plan.lengths import decode_line
from asyncrl.tools.plan.plan_file import inputs
from asyncrl.tools.plan.simulate import Simulation
from asyncrl.tools.plan.simulated.cluster import EventQueue, SimulationResult
from asyncrl.tools.plan.simulated.rollout import Job, SimulatedEngine, colocated
from tests.tools.plan.plans import a_plan


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


# ── test engine ───────────────────────────────────────────────────────────────────────────────
# Continuous batching against hand-computed times.

STEP = decode_line([(1, 1.0), (2, 1.0)])
"""A decode step takes 1 s with one completion and 2 s with two."""


def decoded(
    *lengths: int, slots: int = 2, prefill_tokens: int = 0, swap_at_s: float = 0.0
) -> list[tuple[float, Job, list[Span]]]:
    """Finished completions with their times."""
    events = EventQueue()
    done: list[tuple[float, Job, list[Span]]] = []
    engine = SimulatedEngine(events, slots, STEP, 0.5, lambda job, spans: done.append((events.now_s, job, spans)))

    def swap() -> None:
        engine.swap(1, 3.0, recompute=True)

    engine.swap(0, 0.0, recompute=False)
    engine.add(Job(Unit(0, i), 0, length, 0 if i else prefill_tokens) for i, length in enumerate(lengths))
    if swap_at_s:
        events.after(swap_at_s, swap)
    while events.advance():
        pass
    return done


def times(*lengths: int, **options: int) -> dict[int, float]:
    """Finishing times by index."""
    return {job.unit.index: at_s for at_s, job, _ in decoded(*lengths, **options)}


def test_another_running_completion_slows_a_completion_down():
    # 10 steps of two take 20 s, then the longer has 10 of one left.
    assert times(10, 20) == pytest.approx({0: 20.0, 1: 30.0})


def test_a_completion_without_a_slot_waits_for_one():
    # The third takes the slot of the first at 20 s: 10 steps of two.
    assert times(10, 20, 10) == pytest.approx({0: 20.0, 1: 40.0, 2: 40.0})


def test_prefill_stops_everybody():
    assert times(10, 10, prefill_tokens=4) == pytest.approx({0: 22.0, 1: 22.0})


def test_a_swap_pauses_prefills_again_and_divides_the_tokens():
    # 5 steps of two by second 10; a pause of 3 s, and 2 x 5 tokens again at 0.5 s; then 5 steps of two.
    done = decoded(10, 10, swap_at_s=10.0)
    assert [at_s for at_s, *_ in done] == pytest.approx([28.0, 28.0])
    assert done[0][2] == [Span(0, 0, 5), Span(1, 5, 10)]


def test_a_cancelled_completion_frees_its_slot_at_once():
    events = EventQueue()
    done: list[tuple[float, int]] = []
    engine = SimulatedEngine(events, 2, STEP, 0.5, lambda job, _: done.append((events.now_s, job.unit.index)))
    engine.swap(0, 0.0, recompute=False)
    engine.add(Job(Unit(0, index), index, 10, 0) for index in range(4))
    # By second 10 each of two has 5; then the second goes on beside the fourth, because the third is not wanted either.
    events.after(10.0, lambda: done.append((events.now_s, engine.cancel(lambda job: job.lease_id in (0, 2)))))
    while events.advance():
        pass
    assert done == [(10.0, 2), (20.0, 1), (25.0, 3)]
    assert engine.num_unfinished == 0


def test_equal_completions_end_together():
    assert times(7, 7) == pytest.approx({0: 14.0, 1: 14.0})


# ── test rollout ──────────────────────────────────────────────────────────────────────────────
# Messages that a steady run never sends to a simulated rollout.


def test_cancelled_trajectories_give_their_credits_back():
    plan = a_plan()
    simulation = Simulation(plan, inputs(plan))
    rollout, node = simulation.rollouts[0], simulation.cluster.scheduler.nodes.get("rollout0.0")
    assert node is not None
    while not rollout.engine.num_unfinished:
        simulation.cluster.events.advance()
    assert (rollout.engine.num_unfinished, node.credits) == (4, 4)
    rollout.handle(Cancelled([], [Unit(0, 1), Unit(9, 9)]))
    assert (rollout.engine.num_unfinished, node.credits) == (3, 5)
