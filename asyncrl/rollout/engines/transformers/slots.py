"""
Continuous batching: running completions occupy the first n slots, and each step decodes one token for all of them.

    admit ─▶ prefill ─▶ [ step ─▶ step ─▶ step ] ─▶ finished
                          slots 0 1 2 … n-1 │ free

State that changes at every step is a tensor with one row per slot; Python touches a completion only when it starts and
ends. A cell is ``slot * positions + position``. The cursor of a slot is the cell of its newest token, whose keys are
not in the cache yet, so a prefix of L tokens needs L - 1 cached positions before it is decoded. Uniforms are counted
from the end of the prompt, so a resumed completion continues with the draws of an uninterrupted one.

There is no event loop here: `asyncrl.rollout.engines.transformers.engine` drives the table from one thread. Others may
call `written` and `release` meanwhile: a lock is held while rows change, and never during a forward pass.
"""

import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from asyncrl.algo.routing import Experts, from_routing, to_routing
from asyncrl.engine import Completion, Request
from asyncrl.errors import EngineError
from asyncrl.messages.words import FinishReason
from asyncrl.rollout.engines import text
from asyncrl.rollout.engines.limits import Masks, Spans
from asyncrl.rollout.engines.transformers import sampler
from asyncrl.rollout.engines.transformers.forward import Forward
from asyncrl.rollout.engines.transformers.kv_cache import longest_kept
from asyncrl.rollout.engines.transformers.pictures import PlacedPictures
from asyncrl.rollout.engines.transformers.step_graphs import StepGraphs

# ── slot job ──────────────────────────────────────────────────────────────────────────────────
# A request while the slot table decodes it.


class SlotJob:
    """A request and its slot. Compared by identity: two requests may be equal."""

    def __init__(self, request: Request, placed: PlacedPictures | None = None) -> None:
        resumed = request.resume_from
        self.request = request
        self.prefix = tuple(request.prompt_ids) + tuple(resumed.completion_ids if resumed else ())
        """Prompt and resumed tokens."""
        self.placed = placed
        """Pictures of the prompt; None if it has none."""
        self.key = (self.prefix, placed.digests if placed else ())
        """Key by which jobs share a prefill: their tokens, and their pictures, because two may have equal tokens."""
        self.delta = placed.delta if placed else 0
        """Rotary position of a token after the prompt, minus its index in the sequence."""
        self.resumed_logprobs = resumed.behavior_logprobs if resumed else []
        self.resumed_s = resumed.generate_s if resumed else 0.0
        self.prompt_tokens = len(request.prompt_ids)
        sampling = request.sampling
        self.is_filtered = sampling.is_truncated
        """Draws from a part of the vocabulary."""
        self.is_plain = sampling.temperature == 1 and not self.is_filtered
        """Draws from the softmax of the logits, unchanged."""
        written = resumed.completion_ids if resumed else ()
        self.tail = deque(written, text.stop_window(sampling.stop) if sampling.stop else 0)
        """Newest completion tokens, as many as a stop string may end in; none without stop strings."""
        self.slot = -1
        """-1 while it waits for one."""
        self.start_step = 0
        """Step count of the slot table at which this completion had no token."""
        self.start_s = 0.0
        self.prefix_version = 0
        """Policy version that computed the keys and values of ``prefix``."""
        self.num_kept = 0
        """Tokens of ``prefix`` whose keys and values were in the cache before it got its slot."""
        self.spans = Spans(resumed.spans if resumed else [])
        self.masks = Masks(resumed)
        self.experts = from_routing(resumed.routing) if resumed and resumed.routing else None
        """Experts of the first tokens that another node or an earlier policy recorded; None if there are none."""

    @property
    def num_resumed(self) -> int:
        return len(self.resumed_logprobs)


# ── slots ─────────────────────────────────────────────────────────────────────────────────────

PREFILL_TOKENS = {"cpu": 2048}
"""Most padded tokens of one prefill by kind of device: enough to fill its kernels, few enough for a CPU's caches."""
MOST_PREFILL_TOKENS = 8192
"""Limit on every other kind: an H100 has some 10 us of launches for a layer, and products of this size fill it."""
PREFILL_S = 0.5
"""Longest time of a prefill of several requests, as far as it can be foreseen: running completions wait meanwhile."""
FEWEST_PREFILL_TOKENS = 64
"""Padded tokens that a prefill may have however slow the device is: below it, launching costs more than computing."""

LENGTH_STEP = 16
"""Attention length is rounded up to a multiple of this: kernels prefer whole blocks, and shapes repeat."""


class PrefillPace:
    """
    Follows how fast prefills are, and bounds the padded tokens of the next one to `PREFILL_S`.

    ``most`` tokens are the bound before the first, and never exceeded.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.max_tokens = most
        """Padded tokens that requests may share a prefill with."""

    def took(self, num_tokens: int, seconds: float) -> None:
        """A prefill of so many padded tokens took so long: the next bound is half way to what fits the time."""
        fitting = int(num_tokens / max(seconds, 1e-9) * PREFILL_S)
        bound = (self.max_tokens + fitting) // 2 if fitting > self.max_tokens else fitting
        self.max_tokens = min(max(bound, FEWEST_PREFILL_TOKENS), self._most)


class SlotTable:
    """Running completions. ``stops_here(token_ids, stop)`` is True if the tokens' text contains a stop string."""

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
        prefill_tokens: int = 0,
        never: Collection[int] = (),
    ) -> None:
        """
        Make empty slots.

        Args:
            prefill_tokens: Most padded tokens of one prefill; 0 takes those of the device.
            never: Ids that are never sampled; log-probs are normalised over all other ids.
        """
        positions = forward.cache.positions
        self.cache = forward.cache
        self._forward, self._slots, self._positions = forward, slots, positions
        self._graphs = StepGraphs(forward) if device.type == "cuda" and forward.is_static else None
        self._stops_here = stops_here
        self._pace = PrefillPace(prefill_tokens or PREFILL_TOKENS.get(device.type, MOST_PREFILL_TOKENS))
        self.num_computed = 0
        """Tokens whose keys and values were computed so far: it grows while the device works."""
        self.lock = threading.RLock()
        """Held while jobs take, change or leave slots; by callers who compare their own lists with the slots."""
        self.policy_version = policy_version
        self._jobs: list[SlotJob | None] = []
        """Indexed by slot; None if its completion ended since the last step."""
        self._seeds = random.Random()
        """Seeds of requests without one; the operating system's entropy gives each engine others."""
        self._steps = 0
        self._kept: dict[int, tuple[int, ...]] = {}
        """Tokens whose keys and values free slots have, by slot: those of finished completions."""

        def cells(dtype: torch.dtype) -> Tensor:
            return torch.zeros(slots * positions, dtype=dtype, device=device)

        def rows(values: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(values, slots, dtype=dtype, device=device)

        self._first_cell = torch.arange(slots, device=device) * positions
        self._ids, self._logprobs, self._uniforms = cells(torch.int64), cells(torch.float32), cells(torch.float32)
        self._integers, self._floats = rows(5, torch.int64), rows(2, torch.float32)
        self._cursor, self._last_cell, self._prompt_tokens, self._top_k, self._delta = self._integers
        self._temperature, self._top_p = self._floats
        self._is_eos = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self._is_eos[list(eos_ids)] = True
        self._eos_ids = frozenset(eos_ids)
        self._never = self._tensor(sorted(never)) if never else None
        self._update_summary()

    def __len__(self) -> int:
        return sum(job is not None for job in self._jobs)

    @property
    def running(self) -> list[SlotJob]:
        return [job for job in self._jobs if job is not None]

    # ── admission and release ───────────────────────────────────────────────────────────────

    @torch.inference_mode()
    def admit(self, waiting: deque[SlotJob]) -> None:
        """Move jobs from the head of ``waiting`` into free slots, as many as fit one prefill, and compute it."""
        with self.lock:
            fresh, followers = self._take(waiting)
        if not fresh and not followers:
            return
        whole = [job for job in fresh if not job.num_kept]
        self._prefill(whole, [len(job.prefix) - 1 for job in whole])
        self._extend([job for job in fresh if 0 < job.num_kept < len(job.prefix) - 1])
        for job, leader in followers:
            self.cache.copy(leader.slot, job.slot, len(job.prefix) - 1)

    def _take(self, waiting: deque[SlotJob]) -> tuple[list[SlotJob], list[tuple[SlotJob, SlotJob]]]:
        """Place jobs in free slots. Returns those to prefill, and pairs of a job and the one whose cache it copies."""
        # A running job whose prefix was computed under the current weights is copied instead of computed again.
        leaders = {job.key: job for job in self.running if job.prefix_version == self.policy_version}
        fresh: list[SlotJob] = []
        followers: list[tuple[SlotJob, SlotJob]] = []
        free = self._free_slots() if waiting else deque[int]()
        while waiting and free:
            leader = leaders.get(waiting[0].key)
            if leader is None and fresh and _padded_tokens([*fresh, waiting[0]]) > self._pace.max_tokens:
                break
            job = waiting.popleft()
            self._place(job, self._slot_for(job, free, is_led=leader is not None))
            if leader is None:
                leaders[job.key] = job
                fresh.append(job)
            else:
                followers.append((job, leader))
        if placed := [*fresh, *(job for job, _ in followers)]:
            self._write_rows(placed)
            self._update_summary()
        return fresh, followers

    def _slot_for(self, job: SlotJob, free: deque[int], *, is_led: bool) -> int:
        """Take a free slot for a job; one that has the beginning of its prefix in the cache, or gets a copy of it."""
        kept, num_kept = (-1, 0) if is_led or job.placed else longest_kept(self._kept, job.prefix)
        slot = kept if kept in free and kept < len(self._jobs) else free[0]
        free.remove(slot)
        if num_kept and kept != slot:
            self.cache.copy(kept, slot, num_kept)
        self._kept.pop(slot, None)
        job.num_kept = num_kept
        return slot

    def release(self, job: SlotJob) -> None:
        """Free the slot of a running job."""
        with self.lock:
            self._jobs[job.slot] = None

    def forget_memory(self) -> None:
        """Forget what depends on weights and cache being where they are: completions, finished turns, graphs."""
        self.clear()
        if self._graphs is not None:
            self._graphs.clear()

    def clear(self) -> None:
        with self.lock:
            self._jobs.clear()
            self._kept.clear()
            self._update_summary()

    def written(self, job: SlotJob) -> Completion | None:
        """Unfinished completion of a running job; None if it has no tokens, or does not run."""
        with self.lock:
            if job not in self._jobs or self._end(job) == self._begin(job):
                return None
            return self._completion(job, "unfinished")

    # ── decoding ────────────────────────────────────────────────────────────────────────────

    @torch.inference_mode()
    def step(self) -> list[tuple[SlotJob, Completion | EngineError]]:
        """Decode one token for every running job; return those that ended, with their slots freed."""
        with self.lock:
            if not self:
                return []
            self._compact()
            rows, longest = len(self._jobs), self._longest + self._steps
        cursor = self._cursor[:rows]
        length = min(self._positions, -(-longest // LENGTH_STEP) * LENGTH_STEP)
        positions = cursor - self._first_cell[:rows]
        rotary = positions + self._delta[:rows] if self._has_pictures else None
        step = self._forward.step if self._graphs is None else self._graphs.step
        logits = step(self._ids[cursor], positions, cursor, length, rotary).float()
        if self._never is not None:
            logits.index_fill_(-1, self._never, -torch.inf)
        with self.lock:
            cursor += 1
            tokens, logprobs = self._draw(logits, self._uniforms[cursor - self._prompt_tokens[:rows]])
            self._ids[cursor] = tokens
            self._logprobs[cursor] = logprobs
            self._steps += 1
            self.num_computed += rows
            has_ended = self._is_eos[tokens] | (cursor == self._last_cell[:rows])
            # Each read from a device waits for the step: one tells the tokens, and by their sign those that are last.
            drawn: list[int] = torch.where(has_ended, ~tokens, tokens).tolist()
            return [self._finish(job, max(drawn[job.slot], ~drawn[job.slot])) for job in self._ended(drawn)]

    def _draw(self, logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        temperatures = self._temperature[: len(logits)]
        if self._is_plain:
            return sampler.draw_plain(logits, uniforms)
        tokens, logprobs = sampler.draw(logits, temperatures, uniforms)
        if self._filtered is not None:
            # Only these rows are filtered: a token must not depend on the filters of other rows.
            at = self._filtered
            tokens[at], logprobs[at], ranking = sampler.draw_filtered(
                logits[at], temperatures[at], uniforms[at], self._top_p[at], self._top_k[at]
            )
            self._record_masks(ranking)
        return tokens, logprobs

    def _record_masks(self, ranking: sampler.Ranking) -> None:
        if not self._masked:
            return
        counts, ids = ranking.masks(self._tensor(list(self._masked)))
        end = 0
        for job, count in zip(self._masked.values(), counts, strict=True):
            job.masks.add(ids[end : (end := end + count)])

    def _ended(self, drawn: list[int]) -> list[SlotJob]:
        """Jobs whose token of this step is negated (``~``), and jobs whose text now contains a stop string."""
        rows = enumerate(zip(self._jobs, drawn, strict=True))
        ended = {slot: job for slot, (job, token) in rows if job is not None and token < 0}
        for job in self._with_stops:
            if self._jobs[job.slot] is job:
                token = drawn[job.slot]
                job.tail.append(max(token, ~token))
                if self._is_stopped(job):
                    ended[job.slot] = job
        return list(ended.values())

    def _is_stopped(self, job: SlotJob) -> bool:
        return self._stops_here(list(job.tail), job.request.sampling.stop)

    def _finish(self, job: SlotJob, newest: int) -> tuple[SlotJob, Completion | EngineError]:
        completion = self._completion(job, self._finish_reason(job, newest))
        self.release(job)
        if job.prefix_version == self.policy_version and not job.placed:
            self._kept[job.slot] = (*job.request.prompt_ids, *completion.completion_ids[:-1])
        if not all(map(math.isfinite, completion.behavior_logprobs)):
            return job, EngineError(
                f"policy version {self.policy_version} gave log-probabilities that are not finite; check its weights",
                retryable=False,
            )
        return job, completion

    def _finish_reason(self, job: SlotJob, newest: int) -> FinishReason:
        sampling = job.request.sampling
        is_full = self._end(job) - self._begin(job) == sampling.max_tokens
        is_stopped = newest in self._eos_ids or bool(sampling.stop and self._is_stopped(job))
        return "length" if is_full and not is_stopped else "stop"

    def _completion(self, job: SlotJob, finish_reason: FinishReason) -> Completion:
        start, end = self._begin(job), self._end(job)
        return Completion(
            completion_ids=self._ids[start:end].tolist(),
            behavior_logprobs=self._logprobs[start:end].tolist(),
            spans=job.spans.until(end - start),
            finish_reason=finish_reason,
            generate_s=job.resumed_s + time.perf_counter() - job.start_s,
            grids=job.placed.grids if job.placed else [],
            processor=job.placed.processor if job.placed else "",
            mask_counts=job.masks.counts.copy(),
            mask_ids=job.masks.ids.copy(),
            routing=to_routing(self._experts(job)) if job.request.sampling.replay_routes else None,
        )

    def _experts(self, job: SlotJob) -> Experts:
        """Experts of the tokens that the policy has read, [L + T - 1, layers, K], as they were at the first read."""
        assert self.cache.routes is not None  # the engine refuses requests that ask for what it does not record
        start = 0 if job.experts is None else len(job.experts)
        newest = self.cache.routes.read(job.slot, start, self._num_tokens(job) - 1)
        return newest if job.experts is None else np.concatenate((job.experts, newest))

    # ── new weights ─────────────────────────────────────────────────────────────────────────

    def set_version(self, policy_version: int) -> None:
        """Credit tokens from here on to ``policy_version``."""
        self.policy_version = policy_version
        self._kept.clear()
        for job in self.running:
            job.spans.set_version(policy_version, self._steps - job.start_step)
            if job.request.sampling.replay_routes:
                job.experts = self._experts(job)  # A recomputation of the cache replaces those in it.

    def recompute(self) -> Iterator[int]:
        """
        Compute the keys and values of all running jobs again, and yield after each batch its number of jobs.

        Between two batches jobs may be admitted or released; `step` must wait for the end.
        """
        jobs = sorted(self.running, key=lambda job: job.prompt_tokens - job.start_step)
        while jobs := [job for job in jobs if self._jobs[job.slot] is job]:
            batch = [jobs.pop()]
            longest = self._num_tokens(batch[0])
            while jobs and longest * (len(batch) + 1) <= self._pace.max_tokens:
                batch.append(jobs.pop())
            self._prefill(batch, [self._num_tokens(job) - 1 for job in batch])
            yield len(batch)

    # ── slots ───────────────────────────────────────────────────────────────────────────────

    @torch.inference_mode()
    def _prefill(self, jobs: Sequence[SlotJob], lengths: Sequence[int]) -> None:
        """Compute keys and values of the first ``lengths[i]`` tokens of job i."""
        for job in jobs:
            job.prefix_version = self.policy_version
        longest = max(lengths, default=0)
        if longest == 0:
            return
        slots = self._tensor([job.slot for job in jobs])
        placed = [job.placed for job in jobs] if any(job.placed for job in jobs) else []
        with self._paced(len(jobs) * longest):
            self._forward.prefill(slots, self._grid(self._ids)[slots, :longest], self._tensor(lengths), placed)
        self.num_computed += sum(lengths)

    @torch.inference_mode()
    def _extend(self, jobs: Sequence[SlotJob]) -> None:
        """Compute keys and values of the prefixes of jobs whose slots have their beginnings."""
        if not jobs:
            return
        lengths = [len(job.prefix) - 1 for job in jobs]
        slots, starts = self._tensor([job.slot for job in jobs]), self._tensor([job.num_kept for job in jobs])
        with self._paced(len(jobs) * (max(lengths) - min(job.num_kept for job in jobs))):
            self._forward.extend(slots, self._grid(self._ids)[slots, : max(lengths)], starts, self._tensor(lengths))
        self.num_computed += sum(length - job.num_kept for length, job in zip(lengths, jobs, strict=True))

    @contextmanager
    def _paced(self, num_tokens: int) -> Iterator[None]:
        """Let the pace learn from a prefill of so many padded tokens."""
        start_s = time.perf_counter()
        yield
        if (device := self._ids.device).type not in ("cpu", "meta"):
            torch.get_device_module(device).synchronize(device)
        self._pace.took(num_tokens, time.perf_counter() - start_s)

    def _free_slots(self) -> deque[int]:
        """Holes first, so that fewer completions have to move; those with a finished turn last."""
        holes = sorted((slot for slot, job in enumerate(self._jobs) if job is None), key=self._kept.__contains__)
        return deque([*holes, *range(len(self._jobs), self._slots)])

    def _place(self, job: SlotJob, slot: int) -> None:
        job.slot, job.start_step, job.start_s = slot, self._steps - job.num_resumed, time.perf_counter()
        job.prefix_version = self.policy_version
        job.spans.set_version(self.policy_version, job.num_resumed)
        if slot == len(self._jobs):
            self._jobs.append(job)
        else:
            self._jobs[slot] = job

    def _write_rows(self, jobs: Sequence[SlotJob]) -> None:
        """Write the decoding state of newly placed jobs, with a few operations for all of them together."""
        integers, floats = [], []
        for job in jobs:
            sampling = job.request.sampling
            first = self._begin(job)
            last = first + sampling.max_tokens - 1
            integers.append((first + job.num_resumed - 1, last, job.prompt_tokens, sampling.top_k, job.delta))
            floats.append((sampling.temperature, sampling.top_p))
        slots = self._tensor([job.slot for job in jobs])
        self._integers[:, slots] = self._tensor(integers).t()
        self._floats[:, slots] = self._tensor(floats, torch.float32).t()
        prefixes = self._prefixes(jobs)
        self._grid(self._ids)[slots, : prefixes.shape[1]] = prefixes
        for job in (job for job in jobs if job.num_resumed):
            first = self._begin(job)
            self._logprobs[first : first + job.num_resumed] = self._tensor(job.resumed_logprobs, torch.float32)
        most = max(job.request.sampling.max_tokens for job in jobs)
        seeds = [self._seeds.getrandbits(64) if (seed := job.request.seed) is None else seed for job in jobs]
        draws = sampler.uniforms(seeds, most)  # for every token they may decode
        self._grid(self._uniforms)[slots, :most] = draws.to(slots.device)

    def _prefixes(self, jobs: Sequence[SlotJob]) -> Tensor:
        """[B, longest] prefix tokens, padded on the right. Equal prefixes are converted from Python once."""
        longest = max(len(job.prefix) for job in jobs)
        rows = {prefix: row for row, prefix in enumerate(dict.fromkeys(job.prefix for job in jobs))}
        distinct = self._tensor([prefix + (0,) * (longest - len(prefix)) for prefix in rows])
        return distinct[self._tensor([rows[job.prefix] for job in jobs])]

    def _compact(self) -> None:
        """Move the last completions into the holes, so that a step computes running rows only."""
        holes = [slot for slot, job in enumerate(self._jobs) if job is None]
        for hole in reversed(holes):
            job = self._jobs.pop()
            if job is not None:
                self._move(job, hole)
        if holes:
            self._update_summary()

    def _move(self, job: SlotJob, slot: int) -> None:
        source, self._jobs[slot] = job.slot, job
        self._kept.pop(slot, None)
        self.cache.copy(source, slot, self._num_tokens(job) - 1)
        for cells in (self._ids, self._logprobs, self._uniforms):
            grid = self._grid(cells)
            grid[slot] = grid[source]
        for values in (self._integers, self._floats):
            values[:, slot] = values[:, source]
        self._integers[:2, slot] += (slot - source) * self._positions  # the cursor and the last cell
        job.slot = slot

    def _update_summary(self) -> None:
        """Update the properties of all rows together; called when rows are added, removed or moved."""
        jobs = self.running
        filtered = [job for job in jobs if job.is_filtered]
        self._filtered = self._tensor([job.slot for job in filtered]) if filtered else None
        self._masked = {row: job for row, job in enumerate(filtered) if job.request.sampling.replay_mask}
        """Jobs that record sampling masks, by their row among the filtered ones."""
        self._is_plain = all(job.is_plain for job in jobs)
        self._has_pictures = any(job.delta for job in jobs)
        self._with_stops = [job for job in jobs if job.request.sampling.stop]
        self._longest = max((job.prompt_tokens - job.start_step for job in jobs), default=0)
        """Tokens of the longest row minus the step count."""

    def _grid(self, cells: Tensor) -> Tensor:
        """View of the cells as [slots, positions]."""
        return cells.view(-1, self._positions)

    def _tensor(self, numbers: Sequence[float] | Sequence[Sequence[float]], dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(numbers, dtype=dtype, device=self._ids.device)

    def _num_tokens(self, job: SlotJob) -> int:
        return job.prompt_tokens + self._steps - job.start_step

    def _begin(self, job: SlotJob) -> int:
        """Cell of the first completion token."""
        return job.slot * self._positions + job.prompt_tokens

    def _end(self, job: SlotJob) -> int:
        """Cell after the newest token."""
        return job.slot * self._positions + self._num_tokens(job)


def _padded_tokens(jobs: Sequence[SlotJob]) -> int:
    return len(jobs) * max(len(job.prefix) for job in jobs)
