"""
One engine that decodes many completions together, without looking at single tokens.

    tokens(t)   a clock of decode steps: it runs at 1 / step_s(running), and stands still while the engine stalls
    finish      one that begins at tokens = 700 and is 300 long is done at tokens = 1000, whatever runs beside it

So the only events are completions that end, and the next one is the smallest number in a heap. Prefill stalls the
engine: the work is the same when an engine mixes it with decoding.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count

from msgspec import Struct

from asyncrl.messages import Span, Unit
from asyncrl.plan.simulated.agenda import Agenda
from asyncrl.plan.speeds import Line

ROUNDING = 1e-6
"""Tokens; the clock is a sum of many floats."""


class Job(Struct, frozen=True):
    """A completion to decode."""

    unit: Unit
    lease_id: int
    """Of its lease."""
    num_tokens: int
    prefill_tokens: int
    """Prompt tokens it has to pay for: the first of a group pays for all."""


class Finished(Struct, frozen=True):
    """A decoded completion."""

    job: Job
    spans: list[Span]


class Decoding:
    """
    Continuous batching under virtual time.

    Args:
        slots: Completions decoded together; more wait their turn.
        step_s: Seconds of a decode step by completions running.
        prefill_s: Seconds of one prompt token.
        finished: Told of each completion that is done.
    """

    def __init__(
        self, agenda: Agenda, slots: int, step_s: Line, prefill_s: float, finished: Callable[[Finished], None]
    ) -> None:
        self._agenda = agenda
        self._slots = slots
        self._step_s = [step_s.at(max(running, 1)) for running in range(slots + 1)]
        self._prefill_s = prefill_s
        self._finished = finished
        self._running: list[tuple[float, int, float, Job]] = []
        """Heap of (done at, order, began at, job), in tokens."""
        self._waiting: deque[Job] = deque()
        self._order = count()
        self._tokens = 0.0
        self._as_of_s = 0.0
        self._stalled_until_s = 0.0
        self._sum_began = 0.0
        self._alarm = 0
        """Number of the newest wake-up; earlier ones are void."""
        self._swaps: list[tuple[float, int]] = [(0.0, -1)]
        """From which token on which version writes."""
        self.busy_s = 0.0
        """Seconds with something to decode."""
        self.running_s = 0.0
        """Completions running, summed over seconds."""

    @property
    def num_running(self) -> int:
        """In a slot."""
        return len(self._running)

    @property
    def num_in_hand(self) -> int:
        """In a slot, or waiting for one."""
        return len(self._running) + len(self._waiting)

    def add(self, jobs: Iterable[Job]) -> None:
        """More to decode."""
        self._catch_up()
        self._waiting.extend(jobs)
        self._fill()

    def cancel(self, is_unwanted: Callable[[Job], bool]) -> int:
        """Stop decoding some. Returns how many those were."""
        self._catch_up()
        before = self.num_in_hand
        self._waiting = deque(job for job in self._waiting if not is_unwanted(job))
        self._running = [entry for entry in self._running if not is_unwanted(entry[-1])]
        heapq.heapify(self._running)
        self._sum_began = sum(began for _, _, began, _ in self._running)
        dropped = before - self.num_in_hand
        self._fill()
        return dropped

    def swap(self, policy_version: int, pause_s: float, *, recompute: bool) -> float:
        """The next token is of this version. Returns the seconds decoding stands still; what runs goes on after."""
        self._catch_up()
        self._swaps.append((self._tokens, policy_version))
        again = len(self._running) * self._tokens - self._sum_began if recompute else 0.0
        stall_s = pause_s + again * self._prefill_s
        self._stall(stall_s)
        self._fill()
        return stall_s

    def measure(self) -> None:
        """Bring the sums up to now."""
        self._catch_up()

    def _catch_up(self) -> None:
        now_s, running = self._agenda.now_s, len(self._running)
        if running:
            decoding_s = now_s - max(self._as_of_s, self._stalled_until_s)
            if decoding_s > 0:
                self._tokens += decoding_s / self._step_s[running]
            self.busy_s += now_s - self._as_of_s
            self.running_s += running * (now_s - self._as_of_s)
        self._as_of_s = now_s

    def _stall(self, seconds: float) -> None:
        self._stalled_until_s = max(self._stalled_until_s, self._agenda.now_s) + seconds

    def _fill(self) -> None:
        """Give free slots away and set the alarm for the next completion that ends."""
        while self._waiting and len(self._running) < self._slots:
            job = self._waiting.popleft()
            if job.prefill_tokens:
                self._stall(job.prefill_tokens * self._prefill_s)
            heapq.heappush(self._running, (self._tokens + job.num_tokens, next(self._order), self._tokens, job))
            self._sum_began += self._tokens
        self._alarm += 1
        if self._running:
            left = max(self._running[0][0] - self._tokens, 0.0) * self._step_s[len(self._running)]
            stalled_s = max(self._stalled_until_s - self._agenda.now_s, 0.0)
            alarm = self._alarm
            self._agenda.after(stalled_s + left, lambda: self._woken(alarm))

    def _woken(self, alarm: int) -> None:
        if alarm != self._alarm:
            return
        self._catch_up()
        done = []
        while self._running and self._running[0][0] <= self._tokens + ROUNDING:
            _, _, began, job = heapq.heappop(self._running)
            self._sum_began -= began
            done.append(Finished(job, self._spans(began, job.num_tokens)))
        self._fill()
        for finished in done:
            self._finished(finished)

    def _spans(self, began: float, num_tokens: int) -> list[Span]:
        """Who wrote what of a completion that began at this token."""
        spans: list[Span] = []
        end = num_tokens
        for since, version in reversed(self._swaps):
            start = max(round(since - began), 0)
            if start < end:
                spans.append(Span(version, start, end))
                end = start
            if since <= began:
                break
        return spans[::-1]
