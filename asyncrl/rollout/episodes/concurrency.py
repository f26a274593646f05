"""
Number of episodes of a node that are active at a time: those that may have a turn in the engine.

    engine has room ─▶ more, steadily            cache too small, or preemptions ─▶ fewer, by a share

An episode whose environment thinks needs no slot, so more episodes than slots keep the engine busy. Each keeps the
prefix that it left in the KV cache only as long as nobody needs the place. When they are too many, every turn begins by
computing its whole prefix again, and the engine's time goes there: throughput falls to a third, and no counter of the
engine shows it, because prefixes between turns count as free. So the controller is told how much of the cache all
active episodes need, besides the engine's own load.

Growth is additive and cuts are multiplicative, as in TCP's congestion control (Chiu and Jain, 1989): errors upwards
cost much and are left fast, errors downwards cost little.
"""

from msgspec import Struct
from msgspec.structs import astuple

from asyncrl.rollout.engine import EngineLoad

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
"""Share of the cache that all active episodes need, above which prefixes are lost: all of it."""
ROOMY = 0.9
"""Share below which there is growth: episodes that are active already become longer by themselves."""
BUSY = 0.6
"""
Share of the cache that *running* requests take, above which lost prefixes are a loss of time. An engine that loses
prefixes and still uses less is waiting for environments, and has the time to compute them again.
"""
IDLE = 0.4
"""Share of the same below which there is growth even if prefixes are lost; the gap to `BUSY` keeps the limit still."""
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


class Load(Struct, frozen=True):
    """Averages over the last `SMOOTH_S`."""

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
    The limit, between 1 and ``most``. Pure: told what was measured and when, it returns the limit.

    Args:
        slots: Requests that the engine decodes together; the first limit, or ``most`` if that is less.
        most: Episodes in hand at a time, ``rollout.episodes``.
    """

    def __init__(self, slots: int, most: int) -> None:
        self._slots = slots
        self._most = most
        self._limit = float(min(slots, most))
        self._load: Load | None = None
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
        newest = Load(load.kv_usage, max(load.kv_usage, needed), load.num_running, load.num_waiting, preempted)
        self._load = average = _averaged(self._load or newest, newest, seconds)
        if (factor := _cut(average)) < 1:
            if now_s >= self._settled_s:
                self._limit = max(1.0, self._limit * factor)
                self._settled_s = now_s + SETTLE_S
        elif is_binding:
            self._limit = min(float(self._most), self._limit + _room(average) * self._slots * seconds / GROW_S)
        return self.limit


def _averaged(before: Load, newest: Load, seconds: float) -> Load:
    share = seconds / (seconds + SMOOTH_S)
    values = zip(astuple(before), astuple(newest), strict=True)
    return Load(*(old + share * (new - old) for old, new in values))


def _cut(load: Load) -> float:
    """Factor of the limit; 1 without a cut."""
    if load.needed > FULL and load.usage > BUSY:
        return max(DEEPEST_CUT, ROOMY / load.needed)
    is_queue_long = load.waiting > LONG_QUEUE * load.served
    return CUT if is_queue_long or load.preempted > PREEMPTED * load.served else 1.0


def _room(load: Load) -> float:
    """Speed of growth, from 1 in an empty cache to 0 in a full one."""
    if load.waiting > QUEUE * load.served:
        return 0.0
    return max(1 - load.needed / ROOMY, 1 - load.usage / IDLE if load.needed > FULL else 0.0, 0.0)
