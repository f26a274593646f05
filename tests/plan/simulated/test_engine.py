"""Continuous batching against hand-computed times."""

import pytest

from asyncrl.messages.trajectory import Span, Unit
from asyncrl.plan.simulated.engine import Finished, Job, SimulatedEngine
from asyncrl.plan.simulated.event_queue import EventQueue
from asyncrl.plan.speeds import decode_line

STEP = decode_line([(1, 1.0), (2, 1.0)])
"""A decode step takes 1 s with one completion and 2 s with two."""


def decoded(
    *lengths: int, slots: int = 2, prefill_tokens: int = 0, swap_at_s: float = 0.0
) -> list[tuple[float, Finished]]:
    """Finished completions with their times."""
    events = EventQueue()
    done: list[tuple[float, Finished]] = []
    engine = SimulatedEngine(events, slots, STEP, 0.5, lambda finished: done.append((events.now_s, finished)))

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
    return {finished.job.unit.index: at_s for at_s, finished in decoded(*lengths, **options)}


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
    assert [at_s for at_s, _ in done] == pytest.approx([28.0, 28.0])
    assert done[0][1].spans == [Span(0, 0, 5), Span(1, 5, 10)]


def test_a_cancelled_completion_frees_its_slot_at_once():
    events = EventQueue()
    done: list[tuple[float, int]] = []
    engine = SimulatedEngine(
        events, 2, STEP, 0.5, lambda finished: done.append((events.now_s, finished.job.unit.index))
    )
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
