"""
The completions that are being decoded, one slot each, always the first n slots.

    admit ─▶ prefill ─▶ [ step ─▶ step ─▶ step ] ─▶ finished
                          slots 0 1 2 … n-1 │ free

What changes every step is a tensor with one row per slot; Python looks at a completion when it starts and when it ends.
A cell is ``slot * positions + position``; the cursor of a slot is the cell of its newest token, whose keys are not in
the cache yet. So a prefix of L tokens needs L - 1 in the cache before it can be decoded, the prompt like any other.

No event loop here: `asyncrl.rollout.engines.transformers` drives it.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from asyncrl.errors import EngineError
from asyncrl.rollout.engine import Completion
from asyncrl.rollout.engines import sampler
from asyncrl.rollout.engines.forward import Forward
from asyncrl.rollout.engines.job import Job

PREFILL_TOKENS = 4096
"""Padded tokens of one prefill: enough to fill the kernels, short enough not to hold up the event loop."""

LENGTH_STEP = 32
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

        def rows(dtype: torch.dtype) -> Tensor:
            return torch.zeros(slots, dtype=dtype, device=device)

        self._first_cell = torch.arange(slots, device=device) * positions
        self._ids, self._logprobs, self._uniforms = cells(torch.int64), cells(torch.float32), cells(torch.float32)
        self._cursor, self._last_cell = rows(torch.int64), rows(torch.int64)
        self._temperature, self._top_p, self._top_k = rows(torch.float32), rows(torch.float32), rows(torch.int64)
        self._is_eos = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self._is_eos[list(eos_ids)] = True
        self._summarise()

    def __len__(self) -> int:
        return sum(job is not None for job in self._jobs)

    @property
    def running(self) -> list[Job]:
        """Jobs in slots."""
        return [job for job in self._jobs if job is not None]

    # ── in and out ──────────────────────────────────────────────────────────────────────────

    def admit(self, waiting: deque[Job]) -> None:
        """Move jobs from the head of ``waiting`` into free slots, as many as one prefill can begin."""
        fresh: list[Job] = []
        followers: list[tuple[Job, Job]] = []
        holes = [slot for slot, job in enumerate(self._jobs) if job is None]
        while waiting and (holes or len(self._jobs) < self._slots):
            leader = self._leader(waiting[0])
            if leader is None and fresh and _padded_tokens([*fresh, waiting[0]]) > PREFILL_TOKENS:
                break
            job = waiting.popleft()
            self._seat(job, holes.pop(0) if holes else len(self._jobs))
            if leader is None:
                fresh.append(job)
            else:
                followers.append((job, leader))
        if fresh:
            self._prefill(fresh, [job.prompt_tokens - 1 for job in fresh])
        for job, leader in followers:
            self._forward.cache.copy(leader.slot, job.slot, job.prompt_tokens - 1)
        if seated := [*fresh, *(job for job, _ in followers)]:
            self._draw_ahead(seated)
            self._summarise()

    def release(self, job: Job) -> None:
        """Free the slot of a job; what it wrote is dropped."""
        self._jobs[job.slot] = None

    def clear(self) -> None:
        """Free every slot."""
        self._jobs.clear()
        self._summarise()

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
        tokens, logprobs = self._draw(logits.float(), self._uniforms[cursor])
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
        # A character has at most 4 bytes and a token at least one; the margin holds tokens that decode to nothing.
        window = 4 * max(map(len, stop)) + 8
        end = self._end(job)
        start = max(job.slot * self._positions + job.prompt_tokens, end - window)
        return self._stops_here(self._ids[start:end].tolist(), stop)

    def _finish(self, job: Job) -> tuple[Job, Completion | EngineError]:
        start, end = job.slot * self._positions + job.prompt_tokens, self._end(job)
        self.release(job)
        ids, logprobs = self._ids[start:end], self._logprobs[start:end]
        if not bool(logprobs.isfinite().all()):
            return job, EngineError(
                f"policy version {self.policy_version} gave log-probabilities that are not finite; check its weights",
                retryable=False,
            )
        is_full = end - start == job.request.sampling.max_tokens
        is_stopped = bool(self._is_eos[ids[-1]]) or bool(job.request.sampling.stop and self._is_stopped(job))
        return job, Completion(
            completion_ids=ids.tolist(),
            behavior_logprobs=logprobs.tolist(),
            spans=job.spans(end - start),
            finish_reason="length" if is_full and not is_stopped else "stop",
            generate_s=time.perf_counter() - job.begun_s,
        )

    # ── new weights ─────────────────────────────────────────────────────────────────────────

    def turn(self, policy_version: int) -> None:
        """Credit tokens from here on to ``policy_version``."""
        self.policy_version = policy_version
        for job in self.running:
            job.turn(policy_version, self._steps - job.begun_at)

    def recompute(self) -> Iterator[None]:
        """Compute every running completion's keys and values again, one prefill at each ``next``."""
        jobs = sorted(self.running, key=lambda job: job.prompt_tokens - job.begun_at)
        while jobs:
            batch = [jobs.pop()]
            longest = self._num_tokens(batch[0])
            while jobs and longest * (len(batch) + 1) <= PREFILL_TOKENS:
                batch.append(jobs.pop())
            self._prefill(batch, [self._num_tokens(job) - 1 for job in batch])
            yield

    # ── slots ───────────────────────────────────────────────────────────────────────────────

    @torch.inference_mode()
    def _prefill(self, jobs: Sequence[Job], lengths: Sequence[int]) -> None:
        """Fill the cache with each job's first tokens."""
        for job in jobs:
            job.prompt_version = self.policy_version
        longest = max(lengths)
        if longest == 0:
            return
        slots = torch.tensor([job.slot for job in jobs], device=self._ids.device)
        self._forward.prefill(slots, self._ids.view(-1, self._positions)[slots, :longest])

    def _leader(self, job: Job) -> Job | None:
        """A running job whose cached prompt is this one's, under the weights of today."""
        for other in self.running:
            if other.prompt_version == self.policy_version and other.request.prompt_ids == job.request.prompt_ids:
                return other
        return None

    @torch.inference_mode()
    def _seat(self, job: Job, slot: int) -> None:
        """Give the job a slot and write down what decoding it needs."""
        sampling, start = job.request.sampling, slot * self._positions
        first = start + job.prompt_tokens
        last = first + sampling.max_tokens - 1
        self._ids[start:first] = torch.tensor(job.request.prompt_ids)
        self._cursor[slot], self._last_cell[slot] = first - 1, last
        self._temperature[slot] = sampling.temperature
        self._top_p[slot], self._top_k[slot] = sampling.top_p, sampling.top_k
        job.slot, job.begun_at, job.begun_s = slot, self._steps, time.perf_counter()
        job.prompt_version = self.policy_version
        job.turn(self.policy_version, 0)
        if slot == len(self._jobs):
            self._jobs.append(job)
        else:
            self._jobs[slot] = job

    def _draw_ahead(self, jobs: Sequence[Job]) -> None:
        """Every uniform these jobs may need, all at once: a handful of small operations, not one for each job."""
        counts = [job.request.sampling.max_tokens for job in jobs]
        draws = sampler.uniforms([job.request.seed for job in jobs], max(counts)).to(self._uniforms.device)
        for job, row, count in zip(jobs, draws, counts, strict=True):
            first = job.slot * self._positions + job.prompt_tokens
            self._uniforms[first : first + count] = row[:count]

    def _compact(self) -> None:
        """Move the last completions into the holes, so that a step computes running rows and nothing else."""
        holes = [slot for slot, job in enumerate(self._jobs) if job is None]
        for hole in reversed(holes):
            job = self._jobs.pop()
            if job is not None:
                self._move(job, hole)
        if holes:
            self._summarise()

    @torch.inference_mode()
    def _move(self, job: Job, slot: int) -> None:
        source, self._jobs[slot] = job.slot, job
        self._forward.cache.copy(source, slot, self._num_tokens(job) - 1)
        for cells in (self._ids, self._logprobs, self._uniforms):
            grid = cells.view(-1, self._positions)
            grid[slot] = grid[source]
        for row in (self._temperature, self._top_p, self._top_k):
            row[slot] = row[source]
        shift = (slot - source) * self._positions
        self._cursor[slot], self._last_cell[slot] = self._cursor[source] + shift, self._last_cell[source] + shift
        job.slot = slot

    def _summarise(self) -> None:
        """What the step asks about all rows at once; changes only when rows come, go or move."""
        jobs = self.running
        samplings = [(job.slot, job.request.sampling) for job in jobs]
        filtered = [slot for slot, s in samplings if s.temperature > 0 and (s.top_p < 1 or s.top_k > 0)]
        self._filtered = torch.tensor(filtered, device=self._ids.device) if filtered else None
        self._is_plain = not filtered and all(sampling.temperature == 1 for _, sampling in samplings)
        self._with_stops = [job for job in jobs if job.request.sampling.stop]
        self._longest = max((job.prompt_tokens - job.begun_at for job in jobs), default=0)
        """Tokens of the longest row, less the step count."""

    def _num_tokens(self, job: Job) -> int:
        """Prompt and completion so far."""
        return job.prompt_tokens + self._steps - job.begun_at

    def _end(self, job: Job) -> int:
        """The cell after the job's newest token."""
        return job.slot * self._positions + self._num_tokens(job)


def _padded_tokens(jobs: Sequence[Job]) -> int:
    return len(jobs) * max(job.prompt_tokens for job in jobs)
