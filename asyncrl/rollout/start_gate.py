"""Gate that holds new work back while work in hand ends, before the weights change."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class StartGate:
    """Counts work in hand, and lets new work begin only while it is open."""

    def __init__(self) -> None:
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._num_inside = 0

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Wait until the gate is open, and count the block as work in hand."""
        await self._is_open.wait()
        self._num_inside += 1
        self._is_empty.clear()
        try:
            yield
        finally:
            self._num_inside -= 1
            if not self._num_inside:
                self._is_empty.set()

    async def empty(self) -> None:
        """Close the gate, and wait until no work is in hand."""
        self._is_open.clear()
        await self._is_empty.wait()

    def open(self) -> None:
        self._is_open.set()
