"""
The first rank's hold on the others: it welcomes them, tells them what to do, and notices when one is gone.

    shard ── Hello, Beat ─▶ crew ── Welcome, Batch, Work, Stop ─▶ shard
"""

import asyncio
import time
from collections.abc import Callable

from asyncrl.actor.link import Hub
from asyncrl.errors import LinkClosed, RankDied
from asyncrl.messages import Hello, Message, Welcome


class RankHub:
    """
    Ranks 1 and up.

    Args:
        hub: They connect to it. Owned by the caller.
        size: Ranks of the trainer, the first included.
        welcome: What each is answered.
        silence_s: One that is not heard for this long is gone.
    """

    def __init__(
        self,
        hub: Hub,
        *,
        size: int,
        welcome: Welcome,
        silence_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hub = hub
        self._missing = size - 1
        self._welcome = welcome
        self._silence_s = silence_s
        self._clock = clock
        self._all_came = asyncio.Event()
        self._heard_s: dict[str, float] = {}
        """When each was heard last, by peer."""

    async def listen(self) -> None:
        """Welcome them, and hear their beats, until the hub is closed."""
        while True:
            try:
                peer, message = await self._hub.receive()
            except LinkClosed:
                return
            self._heard_s[peer] = self._clock()
            if isinstance(message, Hello):
                self._hub.send(peer, self._welcome)
                if len(self._heard_s) == self._missing:
                    self._all_came.set()

    async def assembled(self, deadline_s: float) -> None:
        """
        Wait until all of them have come.

        Raises:
            RankDied: They did not within ``deadline_s``.
        """
        try:
            await asyncio.wait_for(self._all_came.wait(), deadline_s)
        except TimeoutError:
            raise RankDied(
                f"{len(self._heard_s)} of the trainer's {self._missing} further ranks came within {deadline_s:g} s"
            ) from None

    def tell(self, message: Message) -> None:
        """Say something to all of them."""
        for peer in self._heard_s:
            self._hub.send(peer, message)

    def require_all(self) -> None:
        """
        Raises:
            RankDied: One has been silent for too long; names it.
        """
        for peer, heard_s in self._heard_s.items():
            if (silent_s := self._clock() - heard_s) > self._silence_s:
                raise RankDied(f"{peer.rpartition('.')[0]} has been silent for {silent_s:.0f} s: it is gone, or stuck")
