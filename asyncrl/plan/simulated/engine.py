"""
An engine that decodes many completions at once, simulated without stepping through single tokens.

    tokens(t)   decode steps done so far: grows at 1 / step_s(running), and not at all during a stall
    finish      a completion of 300 tokens that starts at tokens = 700 ends at tokens = 1000, whatever else runs

The only events are therefore completions that end, and the next one is the smallest number in a heap. Prefill stalls
the engine; the work is the same if an engine interleaves it with decoding.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count

from msgspec import Struct

from asyncrl.messages.trajectory import Span, Unit
from asyncrl.plan.simulated.event_queue import EventQueue
from asyncrl.plan.speeds import Line

ROUNDING = 1e-6
"""Tolerance in tokens, because ``tokens`` is a sum of many floats."""


class Job(Struct, frozen=True):
    unit: Unit
    lease_id: int
    num_tokens: int
    prefill_tokens: int
    """Prompt tokens to prefill: the prompt's for the first completion of a group, 0 for the others."""


class Finished(Struct, frozen=True):
    job: Job
    spans: list[Span]


class SimulatedEngine:
    """Continuous batching under virtual time; ``step_s`` is by completions running, ``prefill_s`` per token."""

    def __init__(
        self, events: EventQueue, slots: int, step_s: Line, prefill_s: float, finished: Callable[[Finished], None]
    ) -> None:
        self._events = events
        self._slots = slots
        self._step_s = [step_s.at(max(running, 1)) for running in range(slots + 1)]
        self._prefill_s = prefill_s
        self._finished = finished
        self._running: list[tuple[float, int, float, Job]] = []
        """Heap of (end, order, start, job); start and end are values of ``tokens``."""
        self._waiting: deque[Job] = deque()
        self._order = count()
        self._tokens = 0.0
        self._as_of_s = 0.0
        self._stalled_until_s = 0.0
        self._sum_of_starts = 0.0
        self._wake_up = 0
        """Number of the newest wake-up event; earlier ones are ignored."""
        self._swaps: list[tuple[float, int]] = [(0.0, -1)]
        """(value of ``tokens``, policy version from there on)."""
        self.busy_s = 0.0
        """Seconds with something to decode."""
        self.running_s = 0.0
        """Integral over time of the number of running completions."""
        self.num_tokens = 0.0
        """Tokens decoded so far."""

    @property
    def decode_steps(self) -> float:
        """Decode steps so far."""
        return self._tokens

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_unfinished(self) -> int:
        return len(self._running) + len(self._waiting)

    def add(self, jobs: Iterable[Job]) -> None:
        self.catch_up()
        self._waiting.extend(jobs)
        self._fill()

    def cancel(self, is_unwanted: Callable[[Job], bool]) -> int:
        """Drop the unwanted completions. Returns their number."""
        self.catch_up()
        before = self.num_unfinished
        self._waiting = deque(job for job in self._waiting if not is_unwanted(job))
        self._running = [entry for entry in self._running if not is_unwanted(entry[-1])]
        heapq.heapify(self._running)
        self._sum_of_starts = sum(start for _, _, start, _ in self._running)
        dropped = before - self.num_unfinished
        self._fill()
        return dropped

    def swap(self, policy_version: int, pause_s: float, *, recompute: bool) -> float:
        """Switch version at the next token; ``recompute`` prefills running completions again. Returns stall seconds."""
        self.catch_up()
        self._swaps.append((self._tokens, policy_version))
        again = len(self._running) * self._tokens - self._sum_of_starts if recompute else 0.0
        stall_s = pause_s + again * self._prefill_s
        self._stall(stall_s)
        self._fill()
        return stall_s

    def catch_up(self) -> None:
        """Bring ``busy_s``, ``running_s`` and the decoded tokens up to the current time."""
        now_s, running = self._events.now_s, len(self._running)
        if running:
            decoding_s = now_s - max(self._as_of_s, self._stalled_until_s)
            if decoding_s > 0:
                steps = decoding_s / self._step_s[running]
                self._tokens += steps
                self.num_tokens += running * steps
            self.busy_s += now_s - self._as_of_s
            self.running_s += running * (now_s - self._as_of_s)
        self._as_of_s = now_s

    def _stall(self, seconds: float) -> None:
        self._stalled_until_s = max(self._stalled_until_s, self._events.now_s) + seconds

    def _fill(self) -> None:
        """Start waiting completions in free slots and schedule a wake-up for the next one that ends."""
        while self._waiting and len(self._running) < self._slots:
            job = self._waiting.popleft()
            if job.prefill_tokens:
                self._stall(job.prefill_tokens * self._prefill_s)
            heapq.heappush(self._running, (self._tokens + job.num_tokens, next(self._order), self._tokens, job))
            self._sum_of_starts += self._tokens
        self._wake_up += 1
        if self._running:
            left = max(self._running[0][0] - self._tokens, 0.0) * self._step_s[len(self._running)]
            stalled_s = max(self._stalled_until_s - self._events.now_s, 0.0)
            wake_up = self._wake_up
            self._events.after(stalled_s + left, lambda: self._woken(wake_up))

    def _woken(self, wake_up: int) -> None:
        if wake_up != self._wake_up:
            return
        self.catch_up()
        done = []
        while self._running and self._running[0][0] <= self._tokens + ROUNDING:
            _, _, start, job = heapq.heappop(self._running)
            self._sum_of_starts -= start
            done.append(Finished(job, self._spans(start, job.num_tokens)))
        self._fill()
        for finished in done:
            self._finished(finished)

    def _spans(self, start: float, num_tokens: int) -> list[Span]:
        """Spans by policy version of a completion that started at this value of ``tokens``."""
        spans: list[Span] = []
        end = num_tokens
        for since, version in reversed(self._swaps):
            first = max(round(since - start), 0)
            if first < end:
                spans.append(Span(version, first, end))
                end = first
            if since <= start:
                break
        return spans[::-1]
