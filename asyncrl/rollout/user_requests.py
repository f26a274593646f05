"""
Requests of a host's users, which rollouts make way for, also in an engine that keeps conversations.

    idle ── first request begins ─▶ busy ── last request ends, and none begins within ``grace_s`` ─▶ idle
    rollouts decode                 rollouts wait outside the engine with their tokens
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from asyncrl.engine import ConversingEngine, Engine
from asyncrl.errors import ConfigError


class UserRequests:
    """
    Users' requests in hand, counted by any thread.

    Args:
        grace_s: Seconds without a request until rollouts continue.
    """

    def __init__(self, grace_s: float = 0.0, clock: Callable[[], float] = time.time) -> None:
        self._grace_s = grace_s
        self._clock = clock
        self._lock = threading.Lock()
        self._num_in_hand = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        """Thread of the loop."""
        self._make_way: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle, self._busy = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self.since = clock()
        """Time of day at which it became busy or idle, by ``clock``."""

    @property
    def is_idle(self) -> bool:
        return self._idle.is_set()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count one request for the time of the block. Never raises."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def watch(self, make_way: Callable[[], None]) -> None:
        """Call ``make_way`` in the running loop when users' requests begin; at once if they begin in its thread."""
        self._loop, self._thread, self._make_way = asyncio.get_running_loop(), threading.get_ident(), make_way
        self._update()

    def unwatch(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._loop = self._make_way = self._timer = None

    async def until_idle(self) -> None:
        await self._idle.wait()

    async def until_busy(self) -> None:
        await self._busy.wait()

    async def until_busy_for(self, seconds: float) -> None:
        """Return once users' requests have been in hand for ``seconds`` without a break."""
        while True:
            await self.until_busy()
            try:
                async with asyncio.timeout(seconds):
                    await self.until_idle()
            except TimeoutError:
                return

    def _count(self, change: int) -> None:
        with self._lock:
            self._num_in_hand += change
            loop = self._loop
        if loop is None or loop.is_closed():
            return
        if threading.get_ident() == self._thread:
            self._update()
        else:
            with suppress(RuntimeError):  # The loop was closed this moment.
                loop.call_soon_threadsafe(self._update)

    def _update(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._num_in_hand and self.is_idle:
            self._idle.clear()
            self._busy.set()
            self.since = self._clock()
            if self._make_way:
                self._make_way()
        elif not self._num_in_hand and not self.is_idle and self._loop:
            self._timer = self._loop.call_later(self._grace_s, self._become_idle)

    def _become_idle(self) -> None:
        self._timer = None
        self._busy.clear()
        self.since = self._clock()
        self._idle.set()


# ── conversing ────────────────────────────────────────────────────────────────────────────────
# Engines that can hold a conversation.


def require_boundary(engine: Engine) -> ConversingEngine:
    """Return the engine as one that can continue a turn; raises `ConfigError` if it cannot."""
    if not isinstance(engine, ConversingEngine):
        raise ConfigError(
            f"episodes of several turns need an engine with the method of asyncrl.engine.ConversingEngine, but "
            f"{type(engine).__name__} has no boundary"
        )
    return engine
