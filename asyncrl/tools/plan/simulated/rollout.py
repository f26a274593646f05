"""Simulated rollout: exchanges the messages of a real one, but its completions are only lengths."""

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count

from msgspec import Struct

from asyncrl.messages.codec import Message
from asyncrl.messages.rollout import Cancelled, Lease, Offer, Settled
from asyncrl.messages.session import Ready
from asyncrl.messages.spool import StoredItem
from asyncrl.messages.trajectory import Span, TrajectorySummary, Unit
from asyncrl.messages.weights import Live, Transfer, Transferred
from asyncrl.tools.plan.lengths import Lengths, PiecewiseLine, TrainingSpeed
from asyncrl.tools.plan.sections import Plan
from asyncrl.tools.plan.simulated.cluster import NOWHERE, EventQueue, SimulatedCluster, SimulationResult

# ── engine ────────────────────────────────────────────────────────────────────────────────────
# An engine that decodes many completions at once, simulated without stepping through single tokens.
#
#     steps(t)    decode steps done so far: grows at 1 / step_s(running), and not at all during a stall
#     finish      a completion of 300 tokens that starts at steps = 700 ends at steps = 1000, whatever else runs
#
# The only events are therefore completions that end, and the next one is the smallest number in a heap. Prefill
# stalls the engine; the work is the same if an engine interleaves it with decoding.

ROUNDING = 1e-6
"""Tolerance in tokens, because ``decode_steps`` is a sum of many floats."""


class Job(Struct, frozen=True):
    unit: Unit
    lease_id: int
    num_tokens: int
    prefill_tokens: int
    """Prompt tokens to prefill: the prompt's for the first completion of a group, 0 for the others."""


class SimulatedEngine:
    """Continuous batching under virtual time; ``step_s`` is by completions running, ``prefill_s`` per token."""

    def __init__(
        self,
        events: EventQueue,
        slots: int,
        step_s: PiecewiseLine,
        prefill_s: float,
        finished: Callable[[Job, list[Span]], None],
    ) -> None:
        self._events = events
        self._slots = slots
        self._step_s = [step_s.at(max(running, 1)) for running in range(slots + 1)]
        self._prefill_s = prefill_s
        self._finished = finished
        self._running: list[tuple[float, int, float, Job]] = []
        """Heap of (end, order, start, job); start and end are values of ``decode_steps``."""
        self._waiting: deque[Job] = deque()
        self._order = count()
        self.decode_steps = 0.0
        """Decode steps so far: the clock of completions."""
        self._as_of_s = 0.0
        self._stalled_until_s = 0.0
        self._sum_of_starts = 0.0
        self._wake_up = 0
        """Number of the newest wake-up event; earlier ones are ignored."""
        self._swaps: list[tuple[float, int]] = [(0.0, -1)]
        """(value of ``decode_steps``, policy version from there on)."""
        self.busy_s = 0.0
        """Seconds with something to decode."""
        self.running_s = 0.0
        """Integral over time of the number of running completions."""
        self.num_tokens = 0.0
        """Tokens decoded so far."""

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
        self._swaps.append((self.decode_steps, policy_version))
        again = len(self._running) * self.decode_steps - self._sum_of_starts if recompute else 0.0
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
                self.decode_steps += steps
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
            heapq.heappush(
                self._running, (self.decode_steps + job.num_tokens, next(self._order), self.decode_steps, job)
            )
            self._sum_of_starts += self.decode_steps
        self._wake_up += 1
        if self._running:
            left = max(self._running[0][0] - self.decode_steps, 0.0) * self._step_s[len(self._running)]
            stalled_s = max(self._stalled_until_s - self._events.now_s, 0.0)
            wake_up = self._wake_up
            self._events.after(stalled_s + left, lambda: self._woken(wake_up))

    def _woken(self, wake_up: int) -> None:
        if wake_up != self._wake_up:
            return
        self.catch_up()
        done = []
        while self._running and self._running[0][0] <= self.decode_steps + ROUNDING:
            _, _, start, job = heapq.heappop(self._running)
            self._sum_of_starts -= start
            done.append((job, self._spans(start, job.num_tokens)))
        self._fill()
        for job, spans in done:
            self._finished(job, spans)

    def _spans(self, start: float, num_tokens: int) -> list[Span]:
        """Spans by policy version of a completion that started at this value of ``decode_steps``."""
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


# ── rollout ───────────────────────────────────────────────────────────────────────────────────


class SimulatedRollout:
    """One replica. ``step_s`` is the seconds per decode step as a function of the completions running."""

    def __init__(self, cluster: SimulatedCluster, name: str, step_s: PiecewiseLine) -> None:
        rollout, schedule = cluster.plan.rollout, cluster.plan.schedule
        self._cluster = cluster
        self._name = name
        self._capacity = rollout.slots + 2 * schedule.group_size  # Like a real rollout.
        self._returned = 0
        self._policy_version = -1
        self._staged_version = -1
        self._queued: list[Job] = []
        """Leased while a swap waits for running completions."""
        prefill_s = 1 / rollout.prefill_tokens_per_s
        self.engine = SimulatedEngine(cluster.events, rollout.slots, step_s, prefill_s, self._finished)
        self._peer = cluster.join(self.handle, "rollout", name)
        cluster.send(self._peer, Ready("planned"), Offer(self._capacity))

    def handle(self, message: Message) -> None:
        match message:
            case Lease():
                self._start(message)
            case Settled(items=items):
                self._return_credits(len(items))
            case Cancelled(lease_ids=lease_ids, units=units):
                self._cancel(set(lease_ids), set(units))
            case Transfer():
                self._cluster.events.after(self._cluster.plan.publish.seconds, lambda: self._received(message))

    def _start(self, lease: Lease) -> None:
        lengths = self._cluster.lengths_of(lease.group_id, lease.indices)
        prompt_tokens = self._cluster.plan.rollout.prompt_tokens
        jobs = [
            Job(Unit(lease.group_id, index, lease.split), lease.lease_id, length, 0 if place else prompt_tokens)
            for place, (index, length) in enumerate(zip(lease.indices, lengths, strict=True))
        ]
        if self._is_swapping:
            self._queued += jobs
        else:
            self.engine.add(jobs)

    def _cancel(self, lease_ids: set[int], units: set[Unit]) -> None:
        def is_unwanted(job: Job) -> bool:
            return job.lease_id in lease_ids or job.unit in units

        wanted = [job for job in self._queued if not is_unwanted(job)]
        num_queued, self._queued = len(self._queued) - len(wanted), wanted
        self._return_credits(self.engine.cancel(is_unwanted) + num_queued)
        self._swap()

    def _return_credits(self, count: int) -> None:
        self._returned += count
        self._cluster.send(self._peer, Offer(self._returned + self._capacity))

    def _finished(self, job: Job, spans: list[Span]) -> None:
        plan = self._cluster.plan
        summary = TrajectorySummary(
            num_tokens=job.num_tokens,
            prompt_tokens=plan.rollout.prompt_tokens,
            oldest_version=spans[0].policy_version,
            newest_version=spans[-1].policy_version,
            num_spans=len(spans),
            finish_reason="length" if job.num_tokens >= plan.lengths.max_tokens else "stop",
        )
        self._cluster.store(self._name, StoredItem(job.unit, job.lease_id, NOWHERE, summary), spans)
        self._swap()

    # ── weights ─────────────────────────────────────────────────────────────────────────────

    @property
    def _is_swapping(self) -> bool:
        """True while new weights wait for running completions to end; nothing new starts until then."""
        is_partial = self._cluster.plan.schedule.partial_rollout is True
        return self._staged_version > self._policy_version and not is_partial

    def _received(self, transfer: Transfer) -> None:
        self._staged_version = transfer.policy_version
        self._cluster.send(self._peer, Transferred(transfer.transfer_group, transfer.policy_version, 0.0, 0))
        self._swap()

    def _swap(self) -> None:
        if self._staged_version <= self._policy_version or (self._is_swapping and self.engine.num_unfinished):
            return
        plan, version = self._cluster.plan, self._staged_version
        self._policy_version = version
        stall_s = self.engine.swap(version, plan.publish.pause_s, recompute=plan.rollout.kv == "recompute")
        jobs, self._queued = self._queued, []
        self.engine.add(jobs)
        self._cluster.after(stall_s, lambda: self._cluster.send(self._peer, Live(version, stall_s, 0.0)))


# ── colocated ─────────────────────────────────────────────────────────────────────────────────
# The synchronous baseline: in turn, all devices generate P T groups and all devices train on them.
#
#     | all replicas generate ........ the longest completion | all devices train T steps | other |
#
# Staleness is 0, and every replica waits for the longest completion.


class SimulatedGeneration:
    """Generation of P T groups, spread round-robin over all replicas."""

    def __init__(self, plan: Plan, lengths: Lengths, step_s: PiecewiseLine, first_group: int) -> None:
        rollout, schedule = plan.rollout, plan.schedule
        self.events = EventQueue()
        self.tokens = 0
        self._num_open = 0
        prefill_s = 1 / rollout.prefill_tokens_per_s
        self.engines = [
            SimulatedEngine(self.events, rollout.slots, step_s, prefill_s, self._finished)
            for _ in range(plan.devices // rollout.devices_per_replica)
        ]
        for engine in self.engines:
            engine.swap(0, 0.0, recompute=False)
        for group_id in range(first_group, first_group + plan.groups_per_publish):
            rng = random.Random(f"{plan.horizon.seed}/{group_id}")
            completions = lengths.group(rng, schedule.group_size)
            self.tokens += sum(completions)
            self._num_open += len(completions)
            self.engines[group_id % len(self.engines)].add(
                Job(Unit(group_id, index), 0, length, 0 if index else rollout.prompt_tokens)
                for index, length in enumerate(completions)
            )
        while self._num_open and self.events.advance():
            pass
        self.seconds = self.events.now_s

    def _finished(self, _job: Job, _spans: list[Span]) -> None:
        self._num_open -= 1


def generate_s(plan: Plan, lengths: Lengths, step_s: PiecewiseLine) -> float:
    """Mean seconds in which all devices generate the groups of one publish."""
    generations = _generations(plan, lengths, step_s)
    return sum(generation.seconds for generation in generations) / len(generations)


def colocated(plan: Plan, lengths: Lengths, step_s: PiecewiseLine, training: TrainingSpeed) -> SimulationResult:
    """Simulate the baseline of a plan on the same number of devices."""
    generations = _generations(plan, lengths, step_s)
    schedule, rollout = plan.schedule, plan.rollout
    completions = plan.groups_per_publish * schedule.group_size
    tokens = sum(generation.tokens for generation in generations) / len(generations)
    generate = sum(generation.seconds for generation in generations) / len(generations)
    train_s = training.seconds(tokens + completions * rollout.prompt_tokens, plan.devices)
    total_s = generate + train_s + plan.synchronous.other_s
    busy_s = sum(engine.busy_s for g in generations for engine in g.engines)
    running_s = sum(engine.running_s for g in generations for engine in g.engines)
    return SimulationResult(
        devices=plan.devices,
        rollout_devices=plan.devices,
        staleness=0.0,
        steps_per_publish=schedule.steps_per_publish,
        step_s=total_s / schedule.steps_per_publish,
        group_s=total_s / plan.groups_per_publish,
        rollout_idle=1 - busy_s / (len(generations) * len(generations[0].engines) * total_s),
        running=running_s / busy_s,
        trainer_idle=1 - train_s / total_s,
        tokens_per_s=tokens / total_s,
        token_staleness={0: 1.0},
        trajectory_staleness={0: 1.0},
        peak_open=plan.groups_per_publish,
    )


def _generations(plan: Plan, lengths: Lengths, step_s: PiecewiseLine) -> list[SimulatedGeneration]:
    """Successive generations: as many as the plan measures versions."""
    size = plan.groups_per_publish
    return [SimulatedGeneration(plan, lengths, step_s, size * i) for i in range(plan.horizon.publishes)]
