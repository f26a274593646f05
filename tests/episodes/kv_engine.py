"""
A simulated engine with a KV cache of fixed size, and episodes whose environments think between turns.

    asks for a turn ─▶ seat ─▶ waits for a slot and cache ─▶ prefill ─▶ decodes ─▶ environment thinks ─▶ asks again
                                    ▲                                      │              │
                                    └─────── preempted: cache is full ─────┘              └ its prefix may be evicted

Like vLLM: prefixes of episodes between turns count as free and are evicted, the oldest first, when a running request
needs their place; when there are none, the request that began last is preempted and prefilled again. Nothing is stepped
token by token: all running requests grow at the same rate between two events.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from random import Random

from msgspec import Struct

from asyncrl.engine import EngineLoad
from asyncrl.episodes.gate import Seats


class Workload(Struct, frozen=True, kw_only=True):
    """Episodes of one kind. Numbers marked ``mean`` are drawn from exponential distributions."""

    prompt: int = 500
    turns: float = 8.0
    """Mean number of turns, at least 1."""
    written: float = 200.0
    """Mean tokens that the policy writes in a turn."""
    observed: float = 300.0
    """Mean tokens of an observation."""
    longest: int = 16_000
    """Tokens after which an episode ends."""
    think_s: float = 4.0
    """Mean seconds of the environment between two turns."""


class Speed(Struct, frozen=True, kw_only=True):
    slots: int = 64
    kv_tokens: int = 200_000
    step_s: float = 0.02
    """Seconds of a decode step of one request."""
    per_request_s: float = 0.0003
    """Additional seconds for each further request."""
    prefill_per_s: float = 10_000.0
    """Tokens."""


class Episode:
    """``tokens`` are those of prompt and finished turns; while a turn runs, ``left`` are still to be written."""

    def __init__(self, workload: Workload, dice: Random) -> None:
        self._workload = workload
        self._dice = dice
        self.turns_left = 1 + round(dice.expovariate(1 / max(workload.turns - 1, 1e-9)))
        self.tokens = workload.prompt
        self.cached = 0
        """Tokens of it in the cache."""
        self.left = 0
        self.written = 0

    def begin_turn(self) -> None:
        self.left = 1 + round(self._dice.expovariate(1 / self._workload.written))
        self.turns_left -= 1

    @property
    def is_over(self) -> bool:
        return self.turns_left <= 0 or self.tokens >= self._workload.longest

    def observe(self) -> float:
        """Append an observation; returns the seconds until it is there."""
        self.tokens += round(self._dice.expovariate(1 / self._workload.observed))
        return self._dice.expovariate(1 / self._workload.think_s)


class KvEngine:
    """``num_episodes`` at a time, each replaced when it ends. ``seats`` says which of them may have a turn."""

    def __init__(
        self,
        speed: Speed,
        seats: Seats[Episode],
        num_episodes: int,
        workload: Callable[[float], Workload],
        seed: int = 0,
    ) -> None:
        self._speed = speed
        self._seats = seats
        self._workload = workload
        """By time, in seconds."""
        self._dice = Random(seed)
        self._running: list[Episode] = []
        """In the order begun."""
        self._waiting: deque[Episode] = deque()
        self._asleep: OrderedDict[Episode, None] = OrderedDict()
        """Episodes between turns with a prefix in the cache; the one that would be evicted next is the first."""
        self._thinking: list[tuple[float, int, Episode]] = []
        self._order = 0
        self._used = 0
        """Cache tokens of running requests and of those between turns."""
        self.now_s = 0.0
        self.num_preempted = 0
        self.finished = 0
        """Tokens that the policy wrote in episodes that have ended."""
        self.prefilled = 0
        for _ in range(num_episodes):
            self._ask(Episode(workload(0.0), self._dice))

    def load(self) -> EngineLoad:
        free = self._speed.kv_tokens - sum(episode.cached for episode in self._running)
        usage = 1 - free / self._speed.kv_tokens
        return EngineLoad(usage, self.num_preempted, len(self._running), len(self._waiting), self._speed.kv_tokens)

    def needed(self) -> float:
        """Share of the cache that all prefixes of active episodes take, those that were evicted included."""
        return sum(episode.tokens for episode in self._seats.seated) / self._speed.kv_tokens

    def advance(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self._admit()
            self._advance(until_s)

    def allow(self, limit: int) -> None:
        self._begin(self._seats.allow(limit))

    # ── turns ───────────────────────────────────────────────────────────────────────────────

    def _ask(self, episode: Episode) -> None:
        if self._seats.ask(episode):
            self._begin([episode])

    def _begin(self, episodes: list[Episode]) -> None:
        for episode in episodes:
            episode.begin_turn()
            self._waiting.append(episode)

    def _admit(self) -> None:
        """Let waiting requests into slots as long as their prefixes fit."""
        while self._waiting and len(self._running) < self._speed.slots:
            episode = self._waiting[0]
            in_use = sum(other.cached for other in self._running)
            if in_use + episode.tokens > self._speed.kv_tokens - len(self._running):
                return
            self._waiting.popleft()
            self._asleep.pop(episode, None)
            missing = episode.tokens - episode.cached
            self._make_room(missing)
            self._used += missing
            episode.cached = episode.tokens
            self.prefilled += missing
            self._running.append(episode)
            self._pass(missing / self._speed.prefill_per_s)

    def _advance(self, until_s: float) -> None:
        """Decode until the next event: a turn ends, an environment answers, the cache is full, or ``until_s``."""
        next_s = min([until_s, *(at_s for at_s, _, _ in self._thinking[:1])])
        if not self._running:
            self.now_s = max(self.now_s, next_s)
            self._wake()
            return
        self._make_room(len(self._running))
        running = len(self._running)
        step_s = self._speed.step_s + self._speed.per_request_s * running
        room = self._speed.kv_tokens - self._used + sum(episode.cached for episode in self._asleep)
        until_event = [math.ceil((next_s - self.now_s) / step_s), min(episode.left for episode in self._running)]
        steps = max(1, min(*until_event, room // running))
        self._make_room(steps * running)
        for episode in self._running:
            episode.left -= steps
            episode.tokens += steps
            episode.written += steps
            episode.cached += steps
        self._used += steps * running
        self._pass(steps * step_s)
        for episode in [episode for episode in self._running if episode.left <= 0]:
            self._end_turn(episode)

    def _end_turn(self, episode: Episode) -> None:
        self._running.remove(episode)
        if episode.is_over:
            self._used -= episode.cached
            self.finished += episode.written
            self._begin(self._seats.leave(episode))
            self._ask(Episode(self._workload(self.now_s), self._dice))
            return
        self._asleep[episode] = None
        self._begin(self._seats.end_turn(episode))
        self._order += 1
        self._thinking.append((self.now_s + episode.observe(), self._order, episode))
        self._thinking.sort(key=lambda entry: entry[:2])

    def _pass(self, seconds: float) -> None:
        self.now_s += seconds
        self._wake()

    def _wake(self) -> None:
        while self._thinking and self._thinking[0][0] <= self.now_s:
            self._ask(self._thinking.pop(0)[2])

    # ── cache ───────────────────────────────────────────────────────────────────────────────

    def _make_room(self, tokens: int) -> None:
        """Evict prefixes of episodes between turns, and then preempt running requests."""
        while self._used + tokens > self._speed.kv_tokens and self._asleep:
            episode, _ = self._asleep.popitem(last=False)
            self._used -= episode.cached
            episode.cached = 0
        while self._used + tokens > self._speed.kv_tokens and self._running:
            episode = self._running.pop()
            self.num_preempted += 1
            self._used -= episode.cached
            episode.cached = 0
            self._waiting.appendleft(episode)
