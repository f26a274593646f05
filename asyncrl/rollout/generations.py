"""
The trajectories a rollout has in hand, from the lease until they are on disk.

    start ─▶ running: encode ─▶ engine.generate ─▶ unsettled ─▶ settled: forgotten
               │                                      ▲
               └── hand_over ─────────────────────────┘            failed ─▶ whoever serves the link tells the broker

They outlive the link to the broker: while it is away nothing stops, and the next session says what is `held`.
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
from asyncrl.rollout.results import UnsettledResults, check_goes_on, result
from asyncrl.rollout.truncation import fit

log = structlog.get_logger()

Continues = Callable[[], Awaitable[Completion]]
"""Fetches what another node has written."""


class _Running(Struct, eq=False):
    """One trajectory that is being sampled."""

    unit: Unit
    lease: Lease
    task: asyncio.Task[None]
    is_begun: bool
    """Somebody has written some of it."""
    request: Request | None = None
    """Once the engine has it."""
    num_put: int = 0
    """Tokens of it that went to the spool."""


class Generations:
    """
    What one engine is asked for, and what came of it.

    Args:
        engine: Borrowed.
        node: Who writes.
    """

    def __init__(self, engine: Engine, node: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._node = node
        self._clock = clock
        self.occupancy = Occupancy(clock)
        self.unsettled = UnsettledResults()
        self.failures: list[Failed] = []
        """To be told to the broker."""
        self.news = asyncio.Event()
        """Something is fresh in ``unsettled`` or ``failures``; whoever takes it clears this."""
        self.policy_version = -1
        """What the engine decodes with; -1 before the first weights."""
        self.num_tokens = 0
        """Generated since the start."""
        self.defect: BaseException | None = None
        """What no engine may raise, and one did."""
        self._running: dict[Unit, _Running] = {}
        self._lease_of: dict[Unit, int] = {}
        """Leases of all in hand: each takes one credit."""
        self._encoded: tuple[Lease, list[int]] | None = None
        """The lease whose prompt was encoded last: its indices come one after the other."""
        self._num_generating = 0
        self._may_start = asyncio.Event()
        self._may_start.set()
        self._changed = asyncio.Event()
        """Something in hand ended: whoever waits for "nothing in hand" looks again."""

    # ── in ──────────────────────────────────────────────────────────────────────────────────

    def start(self, lease: Lease, index: int, begun: Continues | None = None) -> None:
        """
        Sample one trajectory of a lease.

        Args:
            begun: What was written of it before, by whomever.
        """
        unit = Unit(lease.group_id, index, lease.split)
        self._lease_of[unit] = lease.lease_id
        task = asyncio.create_task(self._generate(lease, unit, begun), name=f"generate {unit.group_id}.{index}")
        task.add_done_callback(self._report)
        self._running[unit] = _Running(unit, lease, task, is_begun=begun is not None)

    def forget(self, unit: Unit) -> bool:
        """Nobody waits for this trajectory any more: its task, if any, is cancelled. Was it in hand?"""
        if running := self._running.pop(unit, None):
            running.task.cancel()
        self.unsettled.settle(unit)
        self._changed.set()
        return self._lease_of.pop(unit, None) is not None

    def holds(self, item: Leased) -> bool:
        """Is it in hand under this very lease?"""
        return self._lease_of.get(item.unit) == item.lease_id

    def settle_unfinished(self, item: Leased) -> None:
        """What was handed over of this trajectory is on disk."""
        self.unsettled.settle_unfinished(item)
        self._changed.set()

    def of_leases(self, lease_ids: set[int]) -> list[Unit]:
        """Those in hand that these leases cover."""
        return [unit for unit, lease_id in self._lease_of.items() if lease_id in lease_ids]

    def break_down(self, defect: BaseException) -> None:
        """The engine is of no more use: this session, or the next, raises ``defect``."""
        self.defect = defect
        self.news.set()

    async def aclose(self) -> None:
        """Stop sampling. What is unsettled is lost with this process."""
        tasks = [running.task for running in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ── over a change of session, of node, of weights ───────────────────────────────────────────

    def held(self) -> list[Held]:
        """What a new session begins with. Failures are left out: whatever nobody holds is leased anew."""
        self.failures.clear()
        self.unsettled.begin_anew()
        self.news.set()
        for running in [r for r in self._running.values() if r.is_begun and r.request is None]:
            self.forget(running.unit)  # It waits for an answer of the session that has ended.
        oldest = {unit: self._oldest_version(running) for unit, running in self._running.items()}
        oldest |= {item.unit: item.summary.oldest_version for item in self.unsettled}
        self._lease_of = {unit: lease_id for unit, lease_id in self._lease_of.items() if unit in oldest}
        return [Held(unit, lease_id, oldest[unit]) for unit, lease_id in self._lease_of.items()]

    def progress(self) -> list[PutItem]:
        """What has been written since the last call, of everything that still runs."""
        return [item for running in self._running.values() if (item := self._progress(running))]

    async def hand_over(self) -> None:
        """Stop sampling: what is written waits in ``unsettled`` for its way to disk, for another node to go on from."""
        try:
            await self._engine.pause()
            await asyncio.sleep(0)  # What the engine has finished is still on its way here.
            for running in list(self._running.values()):
                running.num_put = 0
                if item := self._progress(running):
                    self.unsettled.add(item, self._clock())
                    self.news.set()
                del self._running[running.unit]
                running.task.cancel()
        finally:
            await self._engine.resume()  # Whatever happened: the engine is the host's.
        self._changed.set()

    async def let_finish(self) -> None:
        """Start nothing new, and wait until the engine is done with what it has."""
        self._may_start.clear()
        await self._until(lambda: not self._num_generating)

    def go_on(self) -> None:
        """Start what waits."""
        self._may_start.set()

    async def all_settled(self) -> None:
        """Wait until nothing is in hand."""
        await self._until(lambda: not self._running and not self.unsettled)

    # ── one trajectory ──────────────────────────────────────────────────────────────────────

    async def _generate(self, lease: Lease, unit: Unit, begun: Continues | None) -> None:
        self.occupancy.begin()
        try:
            item = await self._result(lease, unit, begun)
        except EngineError as error:
            log.warning("generation.failed", group_id=unit.group_id, index=unit.index, reason=str(error))
            is_overlong = isinstance(error, PromptTooLong)
            self.failures.append(Failed(unit, lease.lease_id, "rollout", str(error), error.retryable, is_overlong))
        else:
            reach("rollout.generated")
            self.unsettled.add(item, self._clock())
        finally:
            if (running := self._running.get(unit)) and running.task is asyncio.current_task():
                del self._running[unit]
            self.occupancy.end()
            self.news.set()
            self._changed.set()

    async def _result(self, lease: Lease, unit: Unit, begun: Continues | None) -> PutItem:
        prefix = await begun() if begun else None
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
            check_goes_on(completion, prefix)
            self.num_tokens -= len(prefix.completion_ids)
        text = self._engine.decode(completion.completion_ids)
        return result(lease, unit, request.prompt_ids, completion, text=text, node=self._node)

    def _encode(self, lease: Lease) -> list[int]:
        if self._encoded is None or self._encoded[0] is not lease:
            prompt_ids = self._engine.encode(lease.prompt)
            self._encoded = lease, fit(prompt_ids, lease.max_prompt_tokens, lease.truncation)
        return self._encoded[1]

    def _progress(self, running: _Running) -> PutItem | None:
        if running.request is None or (written := self._engine.written(running.request)) is None:
            return None
        num_tokens = len(written.completion_ids)
        if num_tokens <= running.num_put:
            return None
        try:
            item = result(running.lease, running.unit, running.request.prompt_ids, written, text="", node=self._node)
        except EngineError as error:  # Worth less than the completion it is a part of: that will be judged by itself.
            log.warning("progress.unusable", group_id=running.unit.group_id, reason=str(error))
            return None
        running.num_put = num_tokens
        return item

    def _report(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self.break_down(error)

    def _oldest_version(self, running: _Running) -> int:
        written = self._engine.written(running.request) if running.request else None
        return min((span.policy_version for span in written.spans), default=0) if written else self.policy_version

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


def _sampling(lease: Lease, index: int) -> Sampling:
    if index not in lease.greedy:
        return lease.sampling
    return structs.replace(lease.sampling, temperature=0.0, top_p=1.0, top_k=0)
