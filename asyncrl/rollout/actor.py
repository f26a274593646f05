"""
Turns leased prompts into trajectories.

    Lease ─▶ Generations, one task an index ─▶ Put to the spool, again and again until Settled
    Transfer ─▶ staging ─▶ pause, swap, resume ─▶ Live            decoding goes on until the pause
    drain ─▶ what is written ─▶ Put ─▶ Settled ─▶ Bye             another node goes on with it

Safe to run inside someone else's process: it installs no signal handler, touches no logging configuration, starts no
thread of its own, and stops when its task is cancelled. Engine, links and receiver are the host's: borrowed, not owned.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial

import structlog

from asyncrl.actor.failpoints import reach
from asyncrl.actor.link import Link
from asyncrl.client.payloads import PayloadClient
from asyncrl.errors import DecodeError, EngineDied, EngineError, LinkClosed, LinkRefused, TransferError
from asyncrl.messages import (
    Beat,
    Cancelled,
    Drain,
    Draining,
    Hold,
    Lease,
    Leased,
    Live,
    Message,
    Offer,
    Put,
    PutItem,
    Ready,
    Reject,
    Release,
    Settled,
    SpoolRef,
    Stop,
    StoreValue,
    Transfer,
    TransferFailed,
    Transferred,
    Unit,
)
from asyncrl.rollout.engine import Completion, Engine, WeightReceiver
from asyncrl.rollout.generations import Generations
from asyncrl.rollout.results import COLLECT_S, RESEND_S, completion_of

log = structlog.get_logger()

FETCH_S = 30.0
"""For what another node has written; then the trajectory is begun anew."""


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
        layout_hash: Of the weight plan; empty without a receiver.
        ranks: Processes of this node that take part in a transfer.
        partial_rollout: False lets generations in hand finish before new weights are swapped in.
        is_in_place: The receiver stages nothing: weights replace the engine's own as they arrive, and decoding stands
            still for all of a transfer. If one breaks, so does this node.
        progress_every_s: What is written is put on disk this often, so that a lost node costs no more; 0 never.
        in_hand: Of an earlier session of this engine, to go on with; the broker heard of it in `Hello`. Borrowed. None
            begins with nothing, and stops sampling when this actor ends.
        on_drain: Called when the broker asks this node to leave; the host then awaits `drain` and says Bye.
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
        receiver: WeightReceiver | None = None,
        layout_hash: str = "",
        ranks: int = 1,
        partial_rollout: bool = True,
        is_in_place: bool = False,
        progress_every_s: float = 0.0,
        in_hand: Generations | None = None,
        on_drain: Callable[[], None] | None = None,
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
        self._layout_hash = layout_hash
        self._ranks = ranks
        self._partial_rollout = partial_rollout
        self._is_in_place = is_in_place
        self._progress_every_s = progress_every_s
        self._generations = in_hand or Generations(engine, node, clock)
        self._owns_generations = in_hand is None
        self._on_drain = on_drain
        self._payloads = PayloadClient(spool)
        self._clock = clock
        self._given_back = 0
        """Trajectories settled, failed or unwanted: their credit is offered again."""
        self._swap_lock = asyncio.Lock()
        self._held = False
        self._draining = False
        self._staged_version = -1
        self._receive_s = 0.0
        self._paused_s: float | None = None
        """Since when the engine has been paused."""
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
                for job in (self._payloads.run, self._put_fresh, self._put_again, self._put_progress):
                    self._spawn(job())
                self._generations.go_on()  # An earlier session may have ended while it waited to swap.
                await self._link.send(Ready(self._layout_hash, self._ranks))
                await self._offer()
                await self._serve()
                for task in self._children:
                    task.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._tasks = None
            if self._owns_generations:
                await self._generations.aclose()

    async def drain(self, deadline_s: float) -> bool:
        """Take no more leases, and hand over what is written. False if the deadline came before it was on disk."""
        self._draining = True
        await self._link.send(Draining())
        try:
            async with asyncio.timeout(deadline_s):
                await self._generations.hand_over()
                await self._generations.all_settled()
        except TimeoutError:
            return False
        return True

    def beat(self, lag_s: float) -> Beat:
        """A sign of life, with running totals."""
        occupancy = self._generations.occupancy
        return Beat(lag_s, occupancy.busy_s, occupancy.wait_s, self._generations.num_tokens)

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
            case Settled(items=items, unfinished=unfinished):
                for item in unfinished:
                    self._generations.settle_unfinished(item)
                await self._give_back([item.unit for item in items if self._generations.holds(item)])
            case Cancelled(lease_ids=lease_ids, units=units):
                await self._give_back([*units, *self._generations.of_leases(set(lease_ids))])
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
            case Drain() if self._on_drain:
                self._on_drain()
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
        begun = {item.index: partial(self._fetch, item.ref) for item in lease.resume_from}
        for index in lease.indices:
            # An earlier lease of it expired: the broker counts a credit for each.
            self._given_back += self._generations.forget(Unit(lease.group_id, index, lease.split))
            self._generations.start(lease, index, begun.get(index))

    async def _fetch(self, ref: SpoolRef) -> Completion:
        try:
            (trajectory,) = await self._payloads.fetch_all([ref], FETCH_S)
        except (DecodeError, TimeoutError) as error:
            raise EngineError(f"what was written of it before cannot be read: {error or 'no answer'}") from error
        return completion_of(trajectory)

    async def _give_back(self, units: list[Unit]) -> None:
        self._given_back += sum(self._generations.forget(unit) for unit in units)
        await self._offer()

    # ── results ─────────────────────────────────────────────────────────────────────────────

    async def _put_fresh(self) -> None:
        generations = self._generations
        while True:
            await generations.news.wait()
            await asyncio.sleep(COLLECT_S)
            generations.news.clear()
            if generations.defect:
                raise generations.defect
            if fresh := generations.unsettled.take_fresh():
                await self._put(fresh)
                reach("rollout.put")
            failures, generations.failures = generations.failures, []
            for failed in failures:
                # It may have been leased anew since, and is being sampled again.
                if generations.holds(Leased(failed.unit, failed.lease_id)):
                    self._given_back += generations.forget(failed.unit)
                await self._link.send(failed)
            if failures:
                await self._offer()

    async def _put_again(self) -> None:
        while True:
            await asyncio.sleep(RESEND_S / 2)
            if late := self._generations.unsettled.overdue(self._clock()):
                log.warning("results.put_again", count=len(late))
                await self._put(late)

    async def _put_progress(self) -> None:
        while self._progress_every_s:
            await asyncio.sleep(self._progress_every_s)
            if items := self._generations.progress():
                await self._put(items)

    async def _put(self, items: list[PutItem]) -> None:
        await self._spool.send(Put(self._node, self._incarnation, items))

    # ── weights ─────────────────────────────────────────────────────────────────────────────

    async def _transfer(self, transfer: Transfer) -> None:
        transfer_group, version, receiver = transfer.transfer_group, transfer.policy_version, self._receiver
        if receiver is None:
            await self._link.send(TransferFailed(transfer_group, version, "this node's engine does not take weights"))
            return
        try:
            async with self._swap_lock:
                self._staged_version = -1  # What waited there is being written over, and gone if this breaks.
                receive = partial(self._replace, receiver) if self._is_in_place else receiver.transfer
                seconds = await receive(transfer)
                self._staged_version, self._receive_s = version, seconds
                reach("rollout.transferred")
        except TransferError as error:
            await self._link.send(TransferFailed(transfer_group, version, str(error)))
            return
        await self._link.send(Transferred(transfer_group, version, seconds, 0))
        await self._swap()

    async def _swap(self) -> None:
        """
        Make what is staged what decodes, once, unless we are held.

        Whatever its number: a version that was not live yet when broker or trainer died may come again, or never.
        """
        generations = self._generations
        async with self._swap_lock:
            if self._held or self._receiver is None or self._staged_version < 0:
                return
            try:
                started_s = await self._pause()
                await self._engine.swap(self._staged_version, self._receiver.weights())
            finally:
                self._paused_s = None
                await self._engine.resume()  # Whatever happened: the engine is the host's.
            generations.go_on()
            reach("rollout.swapped")
            generations.policy_version, self._staged_version = self._staged_version, -1
            log.debug("policy.live", policy_version=generations.policy_version)
            await self._link.send(Live(generations.policy_version, self._clock() - started_s, self._receive_s))

    async def _pause(self) -> float:
        """Stop decoding, if it has not stopped yet. When it did."""
        if self._paused_s is None:
            if not self._partial_rollout:
                await self._generations.let_finish()
            self._paused_s = self._clock()
            await self._engine.pause()
        return self._paused_s

    async def _replace(self, receiver: WeightReceiver, transfer: Transfer) -> float:
        """Receive into the engine itself. It has no weights to go on with if that breaks, and is left paused."""
        await self._pause()
        try:
            return await receiver.transfer(transfer)
        except (TransferError, asyncio.CancelledError) as error:
            cause = str(error) or "the session ended"
            self._generations.break_down(EngineDied(f"some of the engine's weights were replaced, others not: {cause}"))
            raise

    def _spawn(self, coroutine: "asyncio._CoroutineLike[None]") -> asyncio.Task[None]:
        if self._tasks is None:
            raise LinkClosed("this rollout is not running")
        task = self._tasks.create_task(coroutine)
        self._children.add(task)
        task.add_done_callback(self._children.discard)
        return task
