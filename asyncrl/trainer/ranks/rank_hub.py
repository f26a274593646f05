"""
Control of the further ranks by the first one: welcome them, send them work, and notice when one is gone.

    shard ── Hello, Beat ─▶ RankHub ── Welcome, Batch, Work, Stop ─▶ shard
"""

import asyncio
import time
from collections.abc import Callable

from asyncrl.actor.link import Hub
from asyncrl.actor.message import Message
from asyncrl.errors import LinkClosed, RankDied
from asyncrl.messages import Hello, Welcome


class RankHub:
    """
    Connections to ranks 1 to ``size - 1`` over ``hub``, which the caller owns.

    A rank that sends nothing for ``silence_s`` counts as dead.
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
        self._num_expected = size - 1
        self._welcome = welcome
        self._silence_s = silence_s
        self._clock = clock
        self._all_joined = asyncio.Event()
        self._heard_s: dict[str, float] = {}
        """Time of the last message, by peer."""

    async def listen(self) -> None:
        """Welcome ranks and receive their beats until the hub is closed."""
        while True:
            try:
                peer, message = await self._hub.receive()
            except LinkClosed:
                return
            self._heard_s[peer] = self._clock()
            if isinstance(message, Hello):
                self._hub.send(peer, self._welcome)
                if len(self._heard_s) == self._num_expected:
                    self._all_joined.set()

    async def wait_for_all(self, deadline_s: float) -> None:
        """Wait until all ranks have joined; raises `RankDied` after ``deadline_s``."""
        try:
            await asyncio.wait_for(self._all_joined.wait(), deadline_s)
        except TimeoutError:
            raise RankDied(
                f"{len(self._heard_s)} of the trainer's {self._num_expected} further ranks joined in {deadline_s:g} s"
            ) from None

    def broadcast(self, message: Message) -> None:
        """Send a message to every rank that has joined."""
        for peer in self._heard_s:
            self._hub.send(peer, message)

    def require_all(self) -> None:
        """Raise `RankDied`, which names the rank, if one has been silent for too long."""
        for peer, heard_s in self._heard_s.items():
            if (silent_s := self._clock() - heard_s) > self._silence_s:
                raise RankDied(f"{peer.rpartition('.')[0]} has been silent for {silent_s:.0f} s: it is dead or stuck")
