"""
Changes of runs for pages that are open: one look a second at the files while anybody listens, none otherwise.

    poll ─ revisions ─▶ changed? ─▶ every subscriber's event: `data: {"runs": [...]}`      a comment now and then
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import msgspec

from asyncrl.observe.dashboard.query import Refused

POLL_S = 1.0
HEARTBEAT_S = 15.0
"""Seconds without an event after which a comment is sent, so that a connection that broke is noticed."""
MAX_SUBSCRIBERS = 32
HEARTBEAT = b": here\n\n"

Revisions = list[dict[str, Any]]


class Changes:
    """
    Args:
        look: Reads what is new and returns the runs' revisions.
        sleep: Waits for a number of seconds.
    """

    def __init__(
        self,
        look: Callable[[], Awaitable[Revisions]],
        *,
        poll_s: float = POLL_S,
        heartbeat_s: float = HEARTBEAT_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._look = look
        self._poll_s = poll_s
        self._heartbeat_s = heartbeat_s
        self._sleep = sleep
        self._subscribers: set[asyncio.Event] = set()
        self._runs: Revisions = []
        self._polling: asyncio.Task[None] | None = None

    @property
    def num_subscribers(self) -> int:
        return len(self._subscribers)

    def check_room(self) -> None:
        """Raise `Refused` if there are too many subscribers."""
        if len(self._subscribers) >= MAX_SUBSCRIBERS:
            raise Refused(503, f"{MAX_SUBSCRIBERS} pages are open already; close one, or reload this page later")

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield an event at once, at each change, and a comment at least every ``heartbeat_s`` seconds."""
        changed = asyncio.Event()
        self._subscribers.add(changed)
        try:
            await self._renew()
            changed.clear()  # The first event has it.
            if self._polling is None or self._polling.done():
                self._polling = asyncio.create_task(self._poll(), name="dashboard changes")
            yield self._event()
            while True:
                try:
                    async with asyncio.timeout(self._heartbeat_s):
                        await changed.wait()
                except TimeoutError:
                    yield HEARTBEAT
                    continue
                changed.clear()
                yield self._event()
        finally:
            self._subscribers.discard(changed)
            if not self._subscribers and self._polling is not None:
                self._polling.cancel()
                self._polling = None

    async def _poll(self) -> None:
        while True:
            await self._sleep(self._poll_s)
            await self._renew()

    async def _renew(self) -> None:
        """Look, and wake every subscriber if something has changed."""
        runs = await self._look()
        if runs != self._runs:
            self._runs = runs
            for changed in self._subscribers:
                changed.set()

    def _event(self) -> bytes:
        return b"data: %b\n\n" % msgspec.json.encode({"runs": self._runs})
