"""
Seats of a node's episodes: only an episode that has one may have a turn in the engine.

    ask ─▶ waits, the first to arrive first ─▶ seated: turn ─▶ environment ─▶ turn ─▶ ... ─▶ leave
                       ▲                                           │
                       └── its seat is gone: the limit was lowered ┘

An episode keeps its seat while its environment thinks, because its prefix in the KV cache is worth more than that of
one that has not begun. For the same reason episodes that began come before others: they arrived earlier. A lower limit
takes the seats of the youngest between two turns; a turn that runs is never stopped.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from heapq import nlargest, nsmallest
from typing import Generic, TypeVar

E = TypeVar("E", bound=Hashable)


class Seats(Generic[E]):
    """At most ``limit`` seats. Methods that may give seats return the episodes that got one, for a turn that begins."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._num_arrived = 0
        self._arrival: dict[E, int] = {}
        self._seated: set[E] = set()
        self._in_turn: set[E] = set()
        self._waiting: set[E] = set()

    @property
    def seated(self) -> frozenset[E]:
        return frozenset(self._seated)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def ask(self, episode: E) -> bool:
        """Ask for a turn. False: the episode waits, until another method returns it."""
        if episode not in self._arrival:
            self._arrival[episode] = self._num_arrived
            self._num_arrived += 1
        if episode in self._seated:
            self._in_turn.add(episode)
            return True
        self._waiting.add(episode)
        return episode in self._fill()

    def end_turn(self, episode: E) -> list[E]:
        """End a turn, or the wait for one."""
        self._in_turn.discard(episode)
        self._waiting.discard(episode)
        return self._refill()

    def leave(self, episode: E) -> list[E]:
        """Forget an episode that has ended, or no longer wants a turn."""
        self._arrival.pop(episode, None)
        for places in (self._seated, self._in_turn, self._waiting):
            places.discard(episode)
        return self._refill()

    def allow(self, limit: int) -> list[E]:
        """Change the limit, to 1 or more."""
        self.limit = limit
        return self._refill()

    def _refill(self) -> list[E]:
        youngest = nlargest(self._num_over, self._seated - self._in_turn, key=self._arrival.__getitem__)
        self._seated.difference_update(youngest)
        return self._fill()

    def _fill(self) -> list[E]:
        first = nsmallest(-self._num_over, self._waiting, key=self._arrival.__getitem__)
        for places in (self._seated, self._in_turn):
            places.update(first)
        self._waiting.difference_update(first)
        return first

    @property
    def _num_over(self) -> int:
        return len(self._seated) - self.limit


class EpisodeGate(Generic[E]):
    """`Seats` for coroutines of one event loop. An episode is any hashable value; it is told apart by equality."""

    def __init__(self, limit: int) -> None:
        self._seats: Seats[E] = Seats(limit)
        self._num_turns: Counter[E] = Counter()
        """Turns that each episode has or waits for: branches may have several."""
        self._called: defaultdict[E, asyncio.Event] = defaultdict(asyncio.Event)

    @property
    def limit(self) -> int:
        return self._seats.limit

    @property
    def num_waiting(self) -> int:
        """Episodes that want a turn and have no seat."""
        return self._seats.num_waiting

    @property
    def active(self) -> frozenset[E]:
        """Episodes with a seat, those whose environment thinks included."""
        return self._seats.seated

    def allow(self, limit: int) -> None:
        """Change the number of seats, to 1 or more. Running turns end first."""
        self._call(self._seats.allow(limit))

    @asynccontextmanager
    async def turn(self, episode: E) -> AsyncIterator[None]:
        """Wait for a seat, and have a turn. `leave` follows the last one of the episode."""
        self._num_turns[episode] += 1
        try:
            if not self._seats.ask(episode):
                await self._seat_of(episode)
            yield
        finally:
            self._num_turns[episode] -= 1
            if not self._num_turns[episode]:
                del self._num_turns[episode]
                self._called.pop(episode, None)
                self._call(self._seats.end_turn(episode))

    def leave(self, episode: E) -> None:
        """Give the seat of an episode that has ended to another one. No error if it has none."""
        self._call(self._seats.leave(episode))

    async def _seat_of(self, episode: E) -> None:
        try:
            await self._called[episode].wait()
        except asyncio.CancelledError:
            if self._num_turns[episode] == 1:  # It wants no turn any more, and may have a seat by now.
                self._call(self._seats.leave(episode))
            raise

    def _call(self, episodes: list[E]) -> None:
        for episode in episodes:
            self._called[episode].set()
