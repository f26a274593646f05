"""
Turns leased prompts into trajectories.

    Lease ─▶ encode ─▶ engine.generate, one task an index ─▶ Put to the spool, again and again until Settled
    Transfer ─▶ staging ─▶ pause, swap, resume ─▶ Live            decoding goes on until the pause

Safe to run inside someone else's process: it installs no signal handler, touches no logging configuration, starts no
thread of its own, and stops when its task is cancelled. Engine, links and receiver are the host's: borrowed, not owned.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import structlog

from asyncrl.actor.failpoints import reach
from asyncrl.actor.link import Link
from asyncrl.actor.occupancy import Occupancy
from asyncrl.errors import EngineError, LinkClosed, LinkRefused, TransferError
from asyncrl.messages import (
    Beat,
    Cancelled,
    Draining,
    Failed,
    Hold,
    Lease,
    Live,
    Message,
    Offer,
    Put,
    PutItem,
    Ready,
    Reject,
    Release,
    Settled,
    Stop,
    StoreValue,
    Transfer,
    TransferFailed,
    Transferred,
    Unit,
)
from asyncrl.rollout.engine import Engine, Request
from asyncrl.rollout.results import COLLECT_S, RESEND_S, UnsettledResults, result

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

log = structlog.get_logger()


class Receives(Protocol):
    """What brings weights; `asyncrl.weights.receive.Receiver` is one."""

    async def transfer(self, transfer: Transfer, /) -> float:
        """Receive into staging; seconds it took. Raises `TransferError`."""

    def weights(self) -> "Mapping[str, Tensor]":
        """What lies staged."""

    def deliver(self, value: StoreValue, /) -> None:
        """An answer to the rendezvous."""


class RolloutActor:
    """
    One rollout.

    Args:
        engine: Whose tokens these are.
        link: To the broker, after Hello and Welcome.
        spool: To the spool.
        node: Our name, with ``incarnation`` unique for this start.
        slots: Completions the engine decodes together.
        group_size: Trajectories of a full lease.
        receiver: Brings new weights. None refuses every transfer, and a broker then gives no leases: for tests.
        plan_hash: Of the weight plan; empty without a receiver.
        partial_rollout: False lets generations in hand finish before new weights are swapped in.
    """

    def __init__(
        self,
        engine: Engine,
        link: Link,
        spool: Link,
        *,
        node: str,
        incarnation: str,
        slots: int,
        group_size: int,
        receiver: Receives | None = None,
        plan_hash: str = "",
        partial_rollout: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._link = link
        self._spool = spool
        self._node = node
        self._incarnation = incarnation
        # Enough beyond the slots that a finished row finds its successor here while the next lease is on its way.
        self._capacity = slots + 2 * group_size
        self._receiver = receiver
        self._plan_hash = plan_hash
        self._partial_rollout = partial_rollout
        self._clock = clock
        self._occupancy = Occupancy(clock)
        self._given_back = 0
        """Trajectories settled or failed: their credit is offered again."""
        self._running: dict[Unit, asyncio.Task[None]] = {}
        self._num_generating = 0
        self._encoded: tuple[Lease, list[int]] | None = None
        """The lease whose prompt was encoded last: its indices come one after the other."""
        self._tokens_of: dict[Unit, int] = {}
        self._unsettled = UnsettledResults()
        self._has_fresh = asyncio.Event()
        self._may_start = asyncio.Event()
        self._may_start.set()
        self._changed = asyncio.Event()
        """Something in hand ended: whoever waits for "nothing in hand" looks again."""
        self._swap_lock = asyncio.Lock()
        self._held = False
        self._draining = False
        self._policy_version = -1
        self._staged_version = -1
        self._receive_s = 0.0
        self._num_tokens = 0
        self._tasks: asyncio.TaskGroup | None = None
        self._children: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """
        Serve until the broker says Stop or the link is closed.

        Raises:
            LinkRefused: The broker rejected us.
            LinkReset: The broker or spool restarted.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self._spawn(self._put_fresh())
                self._spawn(self._put_again())
                await self._link.send(Ready(self._plan_hash))
                await self._offer()
                await self._serve()
                for task in self._children:
                    task.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._tasks = None

    async def drain(self, deadline_s: float) -> bool:
        """Take no more leases, finish what is in hand. False if the deadline came first."""
        self._draining = True
        await self._link.send(Draining())
        try:
            async with asyncio.timeout(deadline_s):
                await self._until(lambda: not self._running and not self._unsettled)
        except TimeoutError:
            return False
        return True

    def beat(self, lag_s: float) -> Beat:
        """A sign of life, with running totals."""
        return Beat(lag_s, self._occupancy.busy_s, self._occupancy.wait_s, self._num_tokens)

    # ── messages ────────────────────────────────────────────────────────────────────────────

    async def _serve(self) -> None:
        async for message in self._link:
            if isinstance(message, Stop):
                return
            await self._take(message)

    async def _take(self, message: Message) -> None:
        match message:
            case Lease():
                self._start(message)
            case Settled(units=units):
                for unit in units:
                    self._give_back(unit)
                await self._offer()
            case Cancelled(tokens=tokens):
                await self._cancel(set(tokens))
            case Transfer():
                self._spawn(self._transfer(message))
            case StoreValue():
                if self._receiver:
                    self._receiver.deliver(message)
            case Hold():
                self._held = True
            case Release():
                self._held = False
                self._spawn(self._swap())
            case Reject(reason=reason):
                raise LinkRefused(reason)
            case _:
                log.warning("message.unexpected", type=type(message).__name__)

    async def _offer(self) -> None:
        if not self._draining:
            await self._link.send(Offer(self._given_back + self._capacity))

    # ── generation ──────────────────────────────────────────────────────────────────────────

    def _start(self, lease: Lease) -> None:
        if self._draining:
            return  # Crossed with our Draining; it is leased to another when we say Bye.
        for index in lease.indices:
            unit = Unit(lease.group_id, index, lease.split)
            self._drop(unit)  # An earlier lease of it expired: the broker counts a credit for each.
            self._tokens_of[unit] = lease.token
            self._running[unit] = self._spawn(self._generate(lease, unit))

    async def _generate(self, lease: Lease, unit: Unit) -> None:
        self._occupancy.begin()
        try:
            item = await self._result(lease, unit)
        except EngineError as error:
            await self._fail(lease, unit, error)
        else:
            reach("rollout.generated")
            self._num_tokens += item.summary.num_tokens
            self._unsettled.add(item, self._clock())
            self._has_fresh.set()
        finally:
            if self._running.get(unit) is asyncio.current_task():
                del self._running[unit]
            self._occupancy.end()
            self._changed.set()

    async def _result(self, lease: Lease, unit: Unit) -> PutItem:
        await self._may_start.wait()
        self._num_generating += 1
        try:
            prompt_ids = self._encode(lease)
            request = Request(prompt_ids=prompt_ids, sampling=lease.sampling, seed=lease.seed + unit.index)
            completion = await self._engine.generate(request)
        finally:
            self._num_generating -= 1
        text = self._engine.decode(completion.completion_ids)
        return result(lease, unit, prompt_ids, completion, text=text, node=self._node)

    def _encode(self, lease: Lease) -> list[int]:
        if self._encoded is None or self._encoded[0] is not lease:
            self._encoded = lease, self._engine.encode(lease.prompt)
        prompt_ids = self._encoded[1]
        if len(prompt_ids) > lease.max_prompt_tokens:
            raise EngineError(
                f"the prompt has {len(prompt_ids)} tokens, more than data.max_prompt_tokens = "
                f"{lease.max_prompt_tokens}: raise the limit or remove the row",
                retryable=False,
            )
        return prompt_ids

    async def _fail(self, lease: Lease, unit: Unit, error: EngineError) -> None:
        log.warning("generation.failed", group_id=unit.group_id, index=unit.index, reason=str(error))
        self._give_back(unit)
        await self._link.send(Failed(unit, lease.token, "rollout", str(error), error.retryable))
        await self._offer()

    def _give_back(self, unit: Unit) -> None:
        self._unsettled.settle(unit)
        if self._tokens_of.pop(unit, None) is not None:
            self._given_back += 1
        self._changed.set()

    def _drop(self, unit: Unit) -> None:
        if task := self._running.pop(unit, None):
            task.cancel()
        self._give_back(unit)

    async def _cancel(self, tokens: set[int]) -> None:
        for unit in [unit for unit, token in self._tokens_of.items() if token in tokens]:
            self._drop(unit)
        await self._offer()

    # ── results ─────────────────────────────────────────────────────────────────────────────

    async def _put_fresh(self) -> None:
        while True:
            await self._has_fresh.wait()
            await asyncio.sleep(COLLECT_S)
            self._has_fresh.clear()
            await self._spool.send(Put(self._node, self._incarnation, self._unsettled.take_fresh()))
            reach("rollout.put")

    async def _put_again(self) -> None:
        while True:
            await asyncio.sleep(RESEND_S / 2)
            if late := self._unsettled.overdue(self._clock()):
                log.warning("results.put_again", count=len(late))
                await self._spool.send(Put(self._node, self._incarnation, late))

    # ── weights ─────────────────────────────────────────────────────────────────────────────

    async def _transfer(self, transfer: Transfer) -> None:
        epoch, version = transfer.epoch, transfer.policy_version
        if self._receiver is None:
            await self._link.send(TransferFailed(epoch, version, "this node's engine does not take weights"))
            return
        try:
            async with self._swap_lock:
                self._staged_version = -1  # What waited there is being written over, and gone if this breaks.
                seconds = await self._receiver.transfer(transfer)
                self._staged_version, self._receive_s = version, seconds
                reach("rollout.transferred")
        except TransferError as error:
            await self._link.send(TransferFailed(epoch, version, str(error)))
            return
        await self._link.send(Transferred(epoch, version, seconds, 0))
        await self._swap()

    async def _swap(self) -> None:
        """Make what is staged what decodes, unless we are held, or it already does."""
        async with self._swap_lock:
            if self._held or self._receiver is None or self._staged_version <= self._policy_version:
                return
            if not self._partial_rollout:
                self._may_start.clear()
                await self._until(lambda: not self._num_generating)
            started_s = self._clock()
            try:
                await self._engine.pause()
                await self._engine.swap(self._staged_version, self._receiver.weights())
            finally:
                await self._engine.resume()  # Whatever happened: the engine is the host's.
            self._may_start.set()
            reach("rollout.swapped")
            self._policy_version = self._staged_version
            log.debug("policy.live", policy_version=self._policy_version)
            await self._link.send(Live(self._policy_version, self._clock() - started_s, self._receive_s))

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def _spawn(self, coroutine: "asyncio._CoroutineLike[None]") -> asyncio.Task[None]:
        if self._tasks is None:
            raise LinkClosed("this rollout is not running")
        task = self._tasks.create_task(coroutine)
        self._children.add(task)
        task.add_done_callback(self._children.discard)
        return task
