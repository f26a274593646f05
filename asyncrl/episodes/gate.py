"""
Seats of a node's episodes: only an episode with a seat may have a turn in the engine; their number follows its load.

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

from msgspec import Struct
from msgspec.structs import astuple

from asyncrl.engine import EngineLoad

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


# ── concurrency ───────────────────────────────────────────────────────────────────────────────
# Number of episodes of a node that are active at a time: those that may have a turn in the engine.
#
#     engine has room ─▶ more, steadily            cache too small, or preemptions ─▶ fewer, by a share
#
# An episode whose environment thinks needs no slot, so more episodes than slots keep the engine busy. Each keeps the
# prefix that it left in the KV cache only as long as nobody needs the place. When they are too many, every turn
# begins by computing its whole prefix again, and the engine's time goes there: throughput falls to a third, and no
# counter of the engine shows it, because prefixes between turns count as free. So the controller is told how much of
# the cache all active episodes need, besides the engine's own load.
#
# Growth is additive and cuts are multiplicative, as in TCP's congestion control (Chiu and Jain, 1989): errors upwards
# cost much and are left fast, errors downwards cost little.

GROW_S = 120.0
"""
Seconds to add as many episodes as there are slots, in an empty cache; growth slows down as the cache fills. A new
episode takes minutes to reach its full length: faster growth would seat too many before the first of them show it.
"""
SMOOTH_S = 10.0
"""Seconds over which load is averaged: a few turns, whose ends and beginnings come in bursts."""
SETTLE_S = 30.0
"""Seconds after a cut without another: running turns end before the seats are fewer, and the average needs its time."""
FULL = 1.0
"""Share of the KV cache needed by all active episodes above which prefixes are lost: all of it."""
ROOMY = 0.9
"""Share of the KV cache needed by active episodes below which the limit grows: they become longer by themselves."""
BUSY = 0.6
"""
Share of the cache that *running* requests take, above which lost prefixes are a loss of time. An engine that loses
prefixes and still uses less is waiting for environments, and has the time to compute them again.
"""
IDLE = 0.4
"""Share of the cache taken by running requests below which the limit grows even if prefixes are lost."""
QUEUE = 0.1
"""Waiting requests, as a share of the running ones, above which slots or cache are taken, and more would only wait."""
LONG_QUEUE = 0.3
"""
Share above which there is a cut: their prefixes take cache while they wait. A shorter queue is wanted, so that a slot
that becomes free is taken at once.
"""
PREEMPTED = 1 / 60
"""
Preemptions a second for each running request, above which there is a cut. A request that is preempted once a minute
spends about a second of it on being computed again; a preemption now and then is the sign of a cache well used.
"""
CUT = 0.85
"""Factor of the limit after many preemptions and for long queues: several cuts in a row halve it within two minutes."""
DEEPEST_CUT = 0.7
"""Least factor of one cut that aims at `ROOMY`: the average may be that of a burst."""


class SmoothedLoad(Struct, frozen=True):
    """Load of an engine, averaged over the last `SMOOTH_S` seconds."""

    usage: float
    needed: float
    running: float
    waiting: float
    preempted: float
    """Preemptions a second."""

    @property
    def served(self) -> float:
        """
        Requests to compare queues and preemptions with: the running ones, or 1. In an engine that became idle all
        averages vanish together, and a queue of the past would stay the same share of the running requests.
        """
        return max(self.running, 1.0)


class Concurrency:
    """
    Limit of active episodes, between 1 and ``most``. Pure: told what was measured and when, it returns the limit.

    Args:
        slots: Requests that the engine decodes together; the first limit, or ``most`` if that is less.
        most: Episodes in hand at a time, ``rollout.episodes``.
    """

    def __init__(self, slots: int, most: int) -> None:
        self._slots = slots
        self._most = most
        self._limit = float(min(slots, most))
        self._load: SmoothedLoad | None = None
        self._num_preempted = 0
        self._measured_s = 0.0
        self._settled_s = 0.0
        """Time from which on there may be another cut."""

    @property
    def limit(self) -> int:
        return int(self._limit)

    def observe(self, load: EngineLoad, now_s: float, *, needed: float = 0.0, is_binding: bool = True) -> int:
        """
        The limit after another measurement; call it every few seconds.

        Args:
            needed: Share of the KV cache that the prefixes of all active episodes take together, those that were lost
                included: their tokens over `EngineLoad.kv_tokens`. May be above 1.
            is_binding: Some episode waits for a seat; without one the limit does not grow.
        """
        seconds = now_s - self._measured_s if self._load else 0.0
        self._measured_s = now_s
        preempted = (load.num_preempted - self._num_preempted) / seconds if seconds else 0.0
        self._num_preempted = load.num_preempted
        newest = SmoothedLoad(load.kv_usage, max(load.kv_usage, needed), load.num_running, load.num_waiting, preempted)
        self._load = average = _averaged(self._load or newest, newest, seconds)
        if (factor := _cut(average)) < 1:
            if now_s >= self._settled_s:
                self._limit = max(1.0, self._limit * factor)
                self._settled_s = now_s + SETTLE_S
        elif is_binding:
            self._limit = min(float(self._most), self._limit + _room(average) * self._slots * seconds / GROW_S)
        return self.limit


def _averaged(before: SmoothedLoad, newest: SmoothedLoad, seconds: float) -> SmoothedLoad:
    share = seconds / (seconds + SMOOTH_S)
    values = zip(astuple(before), astuple(newest), strict=True)
    return SmoothedLoad(*(old + share * (new - old) for old, new in values))


def _cut(load: SmoothedLoad) -> float:
    """Factor by which the limit is cut under this load; 1 without a cut."""
    if load.needed > FULL and load.usage > BUSY:
        return max(DEEPEST_CUT, ROOMY / load.needed)
    is_queue_long = load.waiting > LONG_QUEUE * load.served
    return CUT if is_queue_long or load.preempted > PREEMPTED * load.served else 1.0


def _room(load: SmoothedLoad) -> float:
    """Speed of growth, from 1 in an empty cache to 0 in a full one."""
    if load.waiting > QUEUE * load.served:
        return 0.0
    return max(1 - load.needed / ROOMY, 1 - load.usage / IDLE if load.needed > FULL else 0.0, 0.0)
