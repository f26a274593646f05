"""The longest delay of a loop is that of the last seconds, one that is still going on included."""

import asyncio

import pytest

from asyncrl.observe.metrics.loop_lag import INTERVAL_S, WINDOW_S, LoopLag, watch


def test_the_longest_delay_is_remembered_for_the_window():
    lag = LoopLag()
    for due_s, woke_s in ((1.0, 1.1), (2.0, 5.0), (6.0, 6.2)):
        lag.awaits(due_s)
        lag.woke(woke_s)
    assert lag.longest_s(6.2) == pytest.approx(3.0)
    assert lag.longest_s(5.0 + WINDOW_S) == pytest.approx(3.0)
    assert lag.longest_s(5.1 + WINDOW_S) == pytest.approx(0.2)
    assert lag.longest_s(60.0) == 0.0


def test_a_wake_up_that_is_overdue_counts_before_it_comes():
    lag = LoopLag()
    lag.awaits(1.0)
    assert lag.longest_s(0.5) == 0.0
    assert lag.longest_s(9.0) == 8.0


def test_the_imports_of_a_process_that_starts_do_not_count():
    class Enough(Exception): ...

    now_s, seen = 0.0, []
    lag = LoopLag()

    async def sleep(seconds: float) -> None:
        nonlocal now_s
        seen.append(lag.longest_s(now_s))
        now_s += seconds + (30.0 if len(seen) == 1 else 0.25)
        if len(seen) == 4:
            raise Enough

    with pytest.raises(Enough):
        asyncio.run(watch(lag, lambda: now_s, is_starting=lambda: len(seen) < 2, sleep=sleep))
    assert INTERVAL_S > 0
    assert seen == [0.0, 0.0, 0.0, 0.25]
