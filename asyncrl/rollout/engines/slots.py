"""
The completions that are being decoded, one slot each, always the first n slots.

    admit ─▶ prefill ─▶ [ step ─▶ step ─▶ step ] ─▶ finished
                          slots 0 1 2 … n-1 │ free

What changes every step is a tensor with one row per slot; Python looks at a completion when it starts and when it ends.
A cell is ``slot * positions + position``; the cursor of a slot is the cell of its newest token, whose keys are not in
the cache yet. So a prefix of L tokens needs L - 1 in the cache before it can be decoded, the prompt like any other.
Uniforms alone are counted from the end of the prompt: what a completion draws has nothing to do with where it begins.

No event loop here: `asyncrl.rollout.engines.transformers` drives it.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from asyncrl.errors import EngineError
from asyncrl.messages import FinishReason
from asyncrl.rollout.engine import Completion
from asyncrl.rollout.engines import sampler, text
from asyncrl.rollout.engines.forward import Forward
from asyncrl.rollout.engines.job import Job

PREFILL_TOKENS = 2048
"""Padded tokens of one prefill: enough to fill the kernels, few enough for caches and not to hold up the event loop."""

LENGTH_STEP = 16
"""Attention reads up to the longest completion, rounded up to this: kernels like whole blocks, and shapes repeat."""


class SlotTable:
    """Continuous batching without the waiting: rows in, rows out, one token for every row at a step."""

    def __init__(
        self,
        forward: Forward,
        *,
        slots: int,
        eos_ids: Sequence[int],
        vocab_size: int,
        stops_here: Callable[[list[int], list[str]], bool],
        policy_version: int,
        device: torch.device,
    ) -> None:
        positions = forward.cache.positions
        self._forward, self._slots, self._positions = forward, slots, positions
        self._stops_here = stops_here
        self.policy_version = policy_version
        self._jobs: list[Job | None] = []
        """By slot; None where a completion ended since the last step."""
        self._steps = 0

        def cells(dtype: torch.dtype) -> Tensor:
            return torch.zeros(slots * positions, dtype=dtype, device=device)

        def rows(values: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(values, slots, dtype=dtype, device=device)

        self._first_cell = torch.arange(slots, device=device) * positions
        self._ids, self._logprobs, self._uniforms = cells(torch.int64), cells(torch.float32), cells(torch.float32)
        self._integers, self._floats = rows(4, torch.int64), rows(2, torch.float32)
        self._cursor, self._last_cell, self._prompt_tokens, self._top_k = self._integers
        self._temperature, self._top_p = self._floats
        self._is_eos = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self._is_eos[list(eos_ids)] = True
        self._eos_ids = frozenset(eos_ids)
        self._summarise()

    def __len__(self) -> int:
        return sum(job is not None for job in self._jobs)

    @property
    def running(self) -> list[Job]:
        """Jobs in slots."""
        return [job for job in self._jobs if job is not None]

    # ── in and out ──────────────────────────────────────────────────────────────────────────

    @torch.inference_mode()
    def admit(self, waiting: deque[Job]) -> None:
        """Move jobs from the head of ``waiting`` into free slots, as many as one prefill can begin."""
        free = self._free_slots() if waiting else deque[int]()
        if not free:
            return
        # Whoever has a prompt in the cache under the weights of today can lend it.
        leaders = {job.given: job for job in self.running if job.prompt_version == self.policy_version}
        fresh: list[Job] = []
        followers: list[tuple[Job, Job]] = []
        while waiting and free:
            leader = leaders.get(waiting[0].given)
            if leader is None and fresh and _padded_tokens([*fresh, waiting[0]]) > PREFILL_TOKENS:
                break
            job = waiting.popleft()
            self._place(job, free.popleft())
            if leader is None:
                leaders[job.given] = job
                fresh.append(job)
            else:
                followers.append((job, leader))
        self._seat([*fresh, *(job for job, _ in followers)])
        self._prefill(fresh, [len(job.given) - 1 for job in fresh])
        for job, leader in followers:
            self._forward.cache.copy(leader.slot, job.slot, len(job.given) - 1)
        self._summarise()

    def release(self, job: Job) -> None:
        """Free the slot of a job; what it wrote is dropped."""
        self._jobs[job.slot] = None

    def clear(self) -> None:
        """Free every slot."""
        self._jobs.clear()
        self._summarise()

    def written(self, job: Job) -> Completion | None:
        """What a running job has so far; None if that is nothing."""
        if self._end(job) == self._begin(job):
            return None
        return self._completion(job, "unfinished")

    # ── decoding ────────────────────────────────────────────────────────────────────────────

    @torch.inference_mode()
    def step(self) -> list[tuple[Job, Completion | EngineError]]:
        """Write one token to every running completion; give back those that ended, their slots freed."""
        if not self:
            return []
        self._compact()
        rows = len(self._jobs)
        cursor = self._cursor[:rows]
        length = min(self._positions, -(-(self._longest + self._steps) // LENGTH_STEP) * LENGTH_STEP)
        logits = self._forward.step(self._ids[cursor], cursor - self._first_cell[:rows], cursor, length)
        cursor += 1
        tokens, logprobs = self._draw(logits.float(), self._uniforms[cursor - self._prompt_tokens[:rows]])
        self._ids[cursor] = tokens
        self._logprobs[cursor] = logprobs
        self._steps += 1
        ended = (self._is_eos[tokens] | (cursor == self._last_cell[:rows])).nonzero()
        return [self._finish(job) for job in self._ended(ended[:, 0].tolist())]

    def _draw(self, logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        temperatures = self._temperature[: len(logits)]
        if self._is_plain:
            return sampler.draw_plain(logits, uniforms)
        tokens, logprobs = sampler.draw(logits, temperatures, uniforms)
        if self._filtered is not None:
            # Only these rows: a token must not depend on which filters its neighbours use.
            at = self._filtered
            tokens[at], logprobs[at] = sampler.draw_filtered(
                logits[at], temperatures[at], uniforms[at], self._top_p[at], self._top_k[at]
            )
        return tokens, logprobs

    def _ended(self, slots: list[int]) -> list[Job]:
        """Jobs of ``slots``, and those whose text now contains a stop string."""
        ended = {job.slot: job for job in map(self._jobs.__getitem__, slots) if job is not None}
        for job in self._with_stops:
            if job.slot not in ended and self._jobs[job.slot] is job and self._is_stopped(job):
                ended[job.slot] = job
        return list(ended.values())

    def _is_stopped(self, job: Job) -> bool:
        stop = job.request.sampling.stop
        end = self._end(job)
        start = max(self._begin(job), end - text.stop_window(stop))
        return self._stops_here(self._ids[start:end].tolist(), stop)

    def _finish(self, job: Job) -> tuple[Job, Completion | EngineError]:
        completion = self._completion(job, self._finish_reason(job))
        self.release(job)
        if not all(map(math.isfinite, completion.behavior_logprobs)):
            return job, EngineError(
                f"policy version {self.policy_version} gave log-probabilities that are not finite; check its weights",
                retryable=False,
            )
        return job, completion

    def _finish_reason(self, job: Job) -> FinishReason:
        sampling = job.request.sampling
        is_full = self._end(job) - self._begin(job) == sampling.max_tokens
        newest = int(self._ids[self._end(job) - 1])
        is_stopped = newest in self._eos_ids or bool(sampling.stop and self._is_stopped(job))
        return "length" if is_full and not is_stopped else "stop"

    def _completion(self, job: Job, finish_reason: FinishReason) -> Completion:
        start, end = self._begin(job), self._end(job)
        return Completion(
            completion_ids=self._ids[start:end].tolist(),
            behavior_logprobs=self._logprobs[start:end].tolist(),
            spans=job.spans.until(end - start),
            finish_reason=finish_reason,
            generate_s=job.seconds_begun + time.perf_counter() - job.begun_s,
        )

    # ── new weights ─────────────────────────────────────────────────────────────────────────

    def turn(self, policy_version: int) -> None:
        """Credit tokens from here on to ``policy_version``."""
        self.policy_version = policy_version
        for job in self.running:
            job.spans.turn(policy_version, self._steps - job.begun_at)

    def recompute(self) -> Iterator[int]:
        """
        Compute the keys and values of all that run now again: at each ``next`` those of as many as it returns.

        Between two of these completions may begin or be released, but there is no `step` before the end.
        """
        jobs = sorted(self.running, key=lambda job: job.prompt_tokens - job.begun_at)
        while jobs := [job for job in jobs if self._jobs[job.slot] is job]:
            batch = [jobs.pop()]
            longest = self._num_tokens(batch[0])
            while jobs and longest * (len(batch) + 1) <= PREFILL_TOKENS:
                batch.append(jobs.pop())
            self._prefill(batch, [self._num_tokens(job) - 1 for job in batch])
            yield len(batch)

    # ── slots ───────────────────────────────────────────────────────────────────────────────

    @torch.inference_mode()
    def _prefill(self, jobs: Sequence[Job], lengths: Sequence[int]) -> None:
        """Fill the cache with each job's first tokens."""
        for job in jobs:
            job.prompt_version = self.policy_version
        longest = max(lengths, default=0)
        if longest == 0:
            return
        slots = self._tensor([job.slot for job in jobs])
        self._forward.prefill(slots, self._grid(self._ids)[slots, :longest], self._tensor(lengths))

    def _free_slots(self) -> deque[int]:
        """Holes first: then fewer completions have to move."""
        holes = (slot for slot, job in enumerate(self._jobs) if job is None)
        return deque([*holes, *range(len(self._jobs), self._slots)])

    def _place(self, job: Job, slot: int) -> None:
        """Give the job a slot."""
        job.slot, job.begun_at, job.begun_s = slot, self._steps - job.num_begun, time.perf_counter()
        job.prompt_version = self.policy_version
        job.spans.turn(self.policy_version, job.num_begun)
        if slot == len(self._jobs):
            self._jobs.append(job)
        else:
            self._jobs[slot] = job

    def _seat(self, jobs: Sequence[Job]) -> None:
        """Write down what decoding these jobs needs: a handful of small operations for all, not for each."""
        integers, floats = [], []
        for job in jobs:
            sampling = job.request.sampling
            first = self._begin(job)
            last = first + sampling.max_tokens - 1
            integers.append((first + job.num_begun - 1, last, job.prompt_tokens, sampling.top_k))
            floats.append((sampling.temperature, sampling.top_p))
        slots = self._tensor([job.slot for job in jobs])
        self._integers[:, slots] = self._tensor(integers).t()
        self._floats[:, slots] = self._tensor(floats, torch.float32).t()
        given = self._given(jobs)
        self._grid(self._ids)[slots, : given.shape[1]] = given
        for job in (job for job in jobs if job.num_begun):
            first = self._begin(job)
            self._logprobs[first : first + job.num_begun] = self._tensor(job.given_logprobs, torch.float32)
        most = max(job.request.sampling.max_tokens for job in jobs)
        draws = sampler.uniforms([job.request.seed for job in jobs], most)  # all that these jobs may ever need
        self._grid(self._uniforms)[slots, :most] = draws.to(slots.device)

    def _given(self, jobs: Sequence[Job]) -> Tensor:
        """[B, longest] tokens, padded on the right. Of a group, Python spells one prompt out."""
        longest = max(len(job.given) for job in jobs)
        rows = {given: row for row, given in enumerate(dict.fromkeys(job.given for job in jobs))}
        distinct = self._tensor([given + (0,) * (longest - len(given)) for given in rows])
        return distinct[self._tensor([rows[job.given] for job in jobs])]

    def _compact(self) -> None:
        """Move the last completions into the holes, so that a step computes running rows and nothing else."""
        holes = [slot for slot, job in enumerate(self._jobs) if job is None]
        for hole in reversed(holes):
            job = self._jobs.pop()
            if job is not None:
                self._move(job, hole)
        if holes:
            self._summarise()

    def _move(self, job: Job, slot: int) -> None:
        source, self._jobs[slot] = job.slot, job
        self._forward.cache.copy(source, slot, self._num_tokens(job) - 1)
        for cells in (self._ids, self._logprobs, self._uniforms):
            grid = self._grid(cells)
            grid[slot] = grid[source]
        for values in (self._integers, self._floats):
            values[:, slot] = values[:, source]
        self._integers[:2, slot] += (slot - source) * self._positions  # the cursor and the last cell
        job.slot = slot

    def _summarise(self) -> None:
        """What the step asks about all rows at once; changes only when rows come, go or move."""
        jobs = self.running
        filtered = [job.slot for job in jobs if job.is_filtered]
        self._filtered = self._tensor(filtered) if filtered else None
        self._is_plain = all(job.is_plain for job in jobs)
        self._with_stops = [job for job in jobs if job.request.sampling.stop]
        self._longest = max((job.prompt_tokens - job.begun_at for job in jobs), default=0)
        """Tokens of the longest row, less the step count."""

    def _grid(self, cells: Tensor) -> Tensor:
        """[slots, positions] the same cells."""
        return cells.view(-1, self._positions)

    def _tensor(self, numbers: Sequence[float] | Sequence[Sequence[float]], dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(numbers, dtype=dtype, device=self._ids.device)

    def _num_tokens(self, job: Job) -> int:
        """Prompt and completion so far."""
        return job.prompt_tokens + self._steps - job.begun_at

    def _begin(self, job: Job) -> int:
        """The cell of the job's first completion token."""
        return job.slot * self._positions + job.prompt_tokens

    def _end(self, job: Job) -> int:
        """The cell after the job's newest token."""
        return job.slot * self._positions + self._num_tokens(job)


def _padded_tokens(jobs: Sequence[Job]) -> int:
    return len(jobs) * max(len(job.given) for job in jobs)
