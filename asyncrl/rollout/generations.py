"""
Trajectories of one rollout, from the lease until they are on disk.

    start ─▶ running: encode ─▶ engine.generate ─▶ unsettled ─▶ settled: forgotten
               │                    │                 ▲
               └── hand_over ───────│─────────────────┘
                                    └─▶ failures ─▶ `Failed` to the broker

They outlive the link to the broker: sampling continues while the broker is away, and `begin_session` lists for the next
session all that is still running or unsettled.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog
from msgspec import Struct, structs

from asyncrl.actor.failpoints import reach
from asyncrl.actor.occupancy import Occupancy
from asyncrl.errors import EngineError, PromptTooLong
from asyncrl.messages import Failed, Held, Lease, Leased, PutItem, Sampling, Unit
from asyncrl.rollout.engine import Completion, Engine, Request
from asyncrl.rollout.prompt_truncation import fit
from asyncrl.rollout.results import UnsettledResults, check_extends, to_put_item

log = structlog.get_logger()

FetchPrefix = Callable[[], Awaitable[Completion]]
"""Fetches the unfinished completion to resume from. Raises `EngineError`."""


class Generation(Struct, eq=False):
    unit: Unit
    lease: Lease
    task: asyncio.Task[None]
    is_resumed: bool
    request: Request | None = None
    """None until the engine has it."""
    num_put: int = 0
    """Tokens put into the spool so far."""


class Generations:
    """Running and unsettled trajectories of one engine, which is borrowed."""

    def __init__(self, engine: Engine, node: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._node = node
        self._clock = clock
        self.occupancy = Occupancy(clock)
        self.unsettled = UnsettledResults()
        self.failures: list[Failed] = []
        self.has_news = asyncio.Event()
        """Set when ``unsettled``, ``failures`` or ``fatal_error`` has something new; the reader clears it."""
        self.policy_version = -1
        """Version the engine decodes with; -1 before the first weights."""
        self.num_tokens = 0  # without resumed ones
        self.fatal_error: BaseException | None = None
        """An error other than `EngineError`: the engine cannot be used any more."""
        self._running: dict[Unit, Generation] = {}
        self._lease_ids: dict[Unit, int] = {}
        """Every running or unsettled trajectory; each uses one credit."""
        self._encoded: tuple[Lease, list[int]] | None = None
        """Lease and prompt ids of the last encoding: the indices of a lease share a prompt and start together."""
        self._num_generating = 0
        self._may_start = asyncio.Event()
        self._may_start.set()
        self._changed = asyncio.Event()
        """Set when a generation ends or is settled: `_until` checks its condition again."""

    # ── leases and results ──────────────────────────────────────────────────────────────────────

    def start(self, lease: Lease, index: int, fetch_prefix: FetchPrefix | None = None) -> None:
        """Sample one trajectory of a lease, from its prompt or from the prefix that ``fetch_prefix`` gives."""
        unit = Unit(lease.group_id, index, lease.split)
        self._lease_ids[unit] = lease.lease_id
        task = asyncio.create_task(self._generate(lease, unit, fetch_prefix), name=f"generate {unit.group_id}.{index}")
        task.add_done_callback(self._report)
        self._running[unit] = Generation(unit, lease, task, is_resumed=fetch_prefix is not None)

    def forget(self, unit: Unit) -> bool:
        """Drop a settled or cancelled trajectory and cancel its task. True if it was running or unsettled."""
        if generation := self._running.pop(unit, None):
            generation.task.cancel()
        self.unsettled.settle(unit)
        self._changed.set()
        return self._lease_ids.pop(unit, None) is not None

    def holds(self, item: Leased) -> bool:
        """True if the trajectory is running or unsettled under exactly this lease."""
        return self._lease_ids.get(item.unit) == item.lease_id

    def settle_unfinished(self, item: Leased) -> None:
        self.unsettled.settle_unfinished(item)
        self._changed.set()

    def units_of(self, lease_ids: set[int]) -> list[Unit]:
        """Running and unsettled trajectories of these leases."""
        return [unit for unit, lease_id in self._lease_ids.items() if lease_id in lease_ids]

    def end_with(self, error: BaseException) -> None:
        """Make this session, or the next one, end with ``error``: the engine cannot be used any more."""
        self.fatal_error = error
        self.has_news.set()

    async def aclose(self) -> None:
        """Stop sampling and drop everything unsettled."""
        tasks = [generation.task for generation in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ── change of session, node or weights ──────────────────────────────────────────────────────

    def begin_session(self) -> list[Held]:
        """
        Prepare for a new session with the broker, and list what is running or unsettled for its `Hello`.

        Failures are dropped: the broker leases every trajectory that is not listed anew. So are generations that still
        wait for their prefix, because the answer belongs to the session that has ended.
        """
        self.failures.clear()
        self.unsettled.mark_all_fresh()
        self.has_news.set()
        for generation in [g for g in self._running.values() if g.is_resumed and g.request is None]:
            self.forget(generation.unit)
        oldest = {unit: self._oldest_version(generation) for unit, generation in self._running.items()}
        oldest |= {item.unit: item.summary.oldest_version for item in self.unsettled}
        self._lease_ids = {unit: lease_id for unit, lease_id in self._lease_ids.items() if unit in oldest}
        return [Held(unit, lease_id, oldest[unit]) for unit, lease_id in self._lease_ids.items()]

    def progress(self) -> list[PutItem]:
        """Unfinished completions that have new tokens since the last call."""
        return [item for generation in self._running.values() if (item := self._progress(generation))]

    async def hand_over(self) -> None:
        """Stop sampling and move unfinished completions to ``unsettled``, for another node to resume."""
        try:
            await self._engine.pause()
            await asyncio.sleep(0)  # Completions that the engine has finished reach their tasks.
            for generation in list(self._running.values()):
                generation.num_put = 0
                if item := self._progress(generation):
                    self.unsettled.add(item, self._clock())
                    self.has_news.set()
                del self._running[generation.unit]
                generation.task.cancel()
        finally:
            await self._engine.resume()  # Also after an error: the engine belongs to the host.
        self._changed.set()

    async def finish_running(self) -> None:
        """Hold back new requests until `allow_starts`, and wait until the engine has finished the running ones."""
        self._may_start.clear()
        await self._until(lambda: not self._num_generating)

    def allow_starts(self) -> None:
        self._may_start.set()

    async def wait_until_settled(self) -> None:
        await self._until(lambda: not self._running and not self.unsettled)

    # ── one trajectory ──────────────────────────────────────────────────────────────────────────

    async def _generate(self, lease: Lease, unit: Unit, fetch_prefix: FetchPrefix | None) -> None:
        self.occupancy.begin()
        try:
            item = await self._sample(lease, unit, fetch_prefix)
        except EngineError as error:
            log.warning("generation.failed", group_id=unit.group_id, index=unit.index, reason=str(error))
            is_overlong = isinstance(error, PromptTooLong)
            self.failures.append(Failed(unit, lease.lease_id, "rollout", str(error), error.retryable, is_overlong))
        else:
            reach("rollout.generated")
            self.unsettled.add(item, self._clock())
        finally:
            if (generation := self._running.get(unit)) and generation.task is asyncio.current_task():
                del self._running[unit]
            self.occupancy.end()
            self.has_news.set()
            self._changed.set()

    async def _sample(self, lease: Lease, unit: Unit, fetch_prefix: FetchPrefix | None) -> PutItem:
        prefix = await fetch_prefix() if fetch_prefix else None
        await self._may_start.wait()
        self._num_generating += 1
        try:
            request = Request(
                prompt_ids=self._encode(lease),
                sampling=_sampling(lease, unit.index),
                seed=lease.seed + unit.index,
                resume_from=prefix,
            )
            self._running[unit].request = request
            completion = await self._engine.generate(request)
        finally:
            self._num_generating -= 1
        self.num_tokens += len(completion.completion_ids)
        if prefix:
            check_extends(completion, prefix)
            self.num_tokens -= len(prefix.completion_ids)
        text = self._engine.decode(completion.completion_ids)
        return to_put_item(lease, unit, request.prompt_ids, completion, text=text, node=self._node)

    def _encode(self, lease: Lease) -> list[int]:
        if self._encoded is None or self._encoded[0] is not lease:
            prompt_ids = self._engine.encode(lease.prompt)
            self._encoded = lease, fit(prompt_ids, lease.max_prompt_tokens, lease.truncation)
        return self._encoded[1]

    def _progress(self, generation: Generation) -> PutItem | None:
        unit, request = generation.unit, generation.request
        if request is None or (written := self._engine.written(request)) is None:
            return None
        num_tokens = len(written.completion_ids)
        if num_tokens <= generation.num_put:
            return None
        try:
            item = to_put_item(generation.lease, unit, request.prompt_ids, written, text="", node=self._node)
        except EngineError as error:  # Skip it: the finished completion is checked on its own.
            log.warning("progress.unusable", group_id=unit.group_id, reason=str(error))
            return None
        generation.num_put = num_tokens
        return item

    def _report(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self.end_with(error)

    def _oldest_version(self, generation: Generation) -> int:
        written = self._engine.written(generation.request) if generation.request else None
        return min((span.policy_version for span in written.spans), default=0) if written else self.policy_version

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


def _sampling(lease: Lease, index: int) -> Sampling:
    if index not in lease.greedy:
        return lease.sampling
    return structs.replace(lease.sampling, temperature=0.0, top_p=1.0, top_k=0)
