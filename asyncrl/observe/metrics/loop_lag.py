"""Delay of an event loop: how much later than asked a sleep ends."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

WINDOW_S = 15.0
"""Time for which a delay is remembered: one scrape interval, by Prometheus' usual setting."""
INTERVAL_S = 0.5


class LoopLag:
    """The longest delay of the last `WINDOW_S` seconds."""

    def __init__(self) -> None:
        self._delays: deque[tuple[float, float]] = deque()
        """Times and delays; each delay is shorter than those before it."""
        self._due_s: float | None = None

    def awaits(self, due_s: float) -> None:
        """The loop is to wake up at ``due_s``."""
        self._due_s = due_s

    def woke(self, now_s: float) -> None:
        """It has woken up."""
        delay_s = max(now_s - (now_s if self._due_s is None else self._due_s), 0.0)
        while self._delays and self._delays[-1][1] <= delay_s:
            self._delays.pop()
        self._delays.append((now_s, delay_s))
        self._due_s = None

    def forget(self) -> None:
        """Forget all delays so far."""
        self._delays.clear()
        self._due_s = None

    def longest_s(self, now_s: float) -> float:
        """The longest delay, that of a wake-up which is overdue included."""
        while self._delays and self._delays[0][0] < now_s - WINDOW_S:
            self._delays.popleft()
        overdue_s = 0.0 if self._due_s is None else now_s - self._due_s
        return max(overdue_s, self._delays[0][1] if self._delays else 0.0)


async def watch(
    lag: LoopLag,
    clock: Callable[[], float],
    *,
    is_starting: Callable[[], bool],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """
    Measure the loop that runs this, every `INTERVAL_S` seconds, until cancelled.

    Delays of a process that ``is_starting`` do not count: its imports block the loop for many seconds.
    """
    while True:
        if not is_starting():
            lag.awaits(clock() + INTERVAL_S)
        await sleep(INTERVAL_S)
        if is_starting():
            lag.forget()
        else:
            lag.woke(clock())
