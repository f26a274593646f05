"""
Rollout actor: samples leased prompts, puts trajectories into the spool, and swaps in new weights.

    Lease ─▶ one generation per index ─▶ Put to the spool, repeated until Settled
    Transfer ─▶ staging ─▶ pause, swap, resume ─▶ Live            decoding continues until the pause
    Sleep ─▶ requests leave the engine ─▶ Asleep, AskTurn ─▶ Wake     devices shared with the trainer
    drain ─▶ unfinished completions ─▶ Put ─▶ Settled ─▶ Bye      another node resumes them

Safe inside a host process: the actor installs no signal handler, touches no logging configuration, starts no thread of
its own, and stops when its task is cancelled. Engine, connection and receiver are borrowed: the host closes them.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Literal

from msgspec import Struct

from asyncrl.engine import Engine, WeightReceiver
from asyncrl.episodes.record import SampledTrajectory
from asyncrl.errors import DecodeError, EngineDied, EngineError, LinkClosed, LinkRefused, TransferError
from asyncrl.failpoints import failpoint
from asyncrl.log import get_logger
from asyncrl.messages.codec import Message
from asyncrl.messages.rollout import Cancelled, Failed, Hold, Lease, Leased, Offer, Release, ResumePoint, Settled
from asyncrl.messages.session import (
    AskTurn,
    Asleep,
    Barred,
    Beat,
    Drain,
    Draining,
    ModelUse,
    Ready,
    Reject,
    Sleep,
    Stop,
    StoreValue,
    Wake,
)
from asyncrl.messages.sound import image_problem_of
from asyncrl.messages.spool import Put, PutItem, Spools
from asyncrl.messages.supervisor import Stacks, StacksWanted
from asyncrl.messages.trajectory import Unit
from asyncrl.messages.weights import Abort, Live, Transfer, TransferFailed, Transferred
from asyncrl.messages.words import WeightsVia
from asyncrl.records.metrics import Sample, model_samples
from asyncrl.rollout.generations import Generations
from asyncrl.rollout.results import COLLECT_S, RESEND_S, to_sampled
from asyncrl.rollout.sleeping import Sleeper
from asyncrl.wire.files import cut_by_bytes, put_bytes
from asyncrl.wire.handshake import Connection
from asyncrl.wire.spools import PayloadClient
from asyncrl.workers.stacks import current_stacks

log = get_logger()

FETCH_S = 30.0
"""Time limit to fetch an unfinished trajectory from the spool. On a timeout the broker leases it again."""


class RolloutOptions(Struct, frozen=True, kw_only=True):
    slots: int = 64
    """Completions the engine decodes together."""
    group_size: int = 8
    """Trajectories of a full lease."""
    episodes: int = 0
    """Episodes in hand at a time; 0 if trajectories are single completions, of which ``slots`` are."""
    partial_rollout: bool | Literal["turn"] = True
    """Swap weights in the middle of completions; False finishes running completions first, ``turn`` running turns."""
    progress_every_s: float = 0.0
    """Seconds between saves of unfinished completions, the most a lost node loses; 0 never saves."""
    layout_hash: str = ""
    """`Layout.hash` of the engine's parameters, checked against the trainer's; empty without a receiver."""
    ranks: int = 1
    """Processes of this node that take part in a transfer."""
    weights: WeightsVia = "collective"
    """Way by which ``receiver`` gets weights."""
    is_in_place: bool = False
    """Weights overwrite the engine's own as they arrive: it pauses for all of a transfer, and a failure ends it."""


class Swaps(Struct):
    """Counts and durations of swaps to new weights in one session."""

    number: int = 0
    pause_s: float = 0.0
    """Seconds that the engine was paused for them."""
    receive_s: float = 0.0


class RolloutActor:
    """
    Actor of a rollout: takes leases, samples them, stores trajectories, and swaps weights.

    Args:
        connection: Links of a node that has received `Welcome`.
        receiver: Receives new weights. None refuses every transfer; a broker then gives no leases (for tests).
        generations: Borrowed state of an earlier session with this engine, already reported in `Hello`. None starts
            empty and stops sampling when `run` ends.
        sleeper: Lets the engine sleep where it shares its devices with the trainer; None refuses.
        on_drain: Called when the broker asks this node to leave; the host then awaits `drain` and says Bye.
        on_live: Called after each swap.
        models: Gives the use of each model that the code of this node has asked.
    """

    def __init__(
        self,
        engine: Engine,
        connection: Connection,
        options: RolloutOptions = RolloutOptions(),  # noqa: B008  immutable
        *,
        receiver: WeightReceiver | None = None,
        generations: Generations | None = None,
        sleeper: Sleeper | None = None,
        on_drain: Callable[[], None] | None = None,
        on_live: Callable[[], None] | None = None,
        models: Callable[[], dict[str, ModelUse]] = dict,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._engine = engine
        self._identity = connection.identity
        self._broker = connection.broker
        self._spools = connection.spools
        self._options = options
        # Two leases beyond the slots, so that no slot waits for the next lease to arrive.
        self._capacity = (options.episodes or options.slots) + 2 * options.group_size
        self._receiver = receiver
        self._generations = generations or Generations(engine, connection.identity.node, clock)
        self._generations.images.connect(connection.spools)
        self._owns_generations = generations is None
        self._sleeper = sleeper
        self._on_drain = on_drain
        self._on_live = on_live
        self._models = models
        self._payloads = PayloadClient(connection.spools)
        self._clock = clock
        self._sleep = sleep
        self._returned_credits = 0
        """Trajectories settled, failed or cancelled so far."""
        self._swap_lock = asyncio.Lock()
        self._is_held = False
        self._is_draining = False
        self._staged_version = -1
        self._receive_s = 0.0
        self._swaps = Swaps()
        self._paused_s: float | None = None
        """Clock time at which the engine was paused; None while it runs."""
        self._tasks: asyncio.TaskGroup | None = None
        self._children: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until Stop or a closed link. `LinkRefused`: node rejected; `LinkReset`: the broker restarted."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                loops = self._spools.run, self._put_fresh, self._put_again, self._put_progress, self._offer_when_idle
                for loop in loops:
                    self._spawn(loop())
                self._generations.allow_starts()  # An earlier session may have ended while waiting to swap.
                options, ids = self._options, self._generations.token_ids
                await self._broker.send(Ready.of(ids, options.layout_hash, options.ranks, options.weights))
                await self._offer()
                async for message in self._broker:
                    if isinstance(message, Stop):
                        break
                    if isinstance(message, StacksWanted):
                        await self._broker.send(Stacks(message.node, current_stacks()))
                    else:
                        await self._handle(message)
                for task in self._children:
                    task.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._tasks = None
            if self._owns_generations:
                await self._generations.aclose()

    async def drain(self, deadline_s: float) -> bool:
        """
        Take no more leases, put every trajectory, also unfinished, and finish a transfer of weights.

        False if not all are on disk, or the transfer goes on, at the deadline.
        """
        self._is_draining = True
        await self._broker.send(Draining())
        try:
            async with asyncio.timeout(deadline_s):
                await self._generations.hand_over(is_swapping=lambda: self._paused_s is not None)
                await self._generations.wait_until_settled()
                async with self._swap_lock:  # A transfer that loses a member fails for all of them.
                    pass
        except TimeoutError:
            return False
        return True

    def heartbeat(self, lag_s: float) -> Beat:
        """Heartbeat with running totals; ``lag_s`` is the delay of the event loop."""
        made = self._generations
        return Beat(
            lag_s,
            made.occupancy.seconds,
            made.calls.num_tokens,
            decode_steps=made.calls.decode_steps.number,
            doing=made.occupancy.current,
            progress=made.calls.num_computed,
            models=self._models(),
            containers=made.containers,
        )

    def status(self) -> str:
        """Version of the weights, and completions in hand."""
        in_hand = f"{self._generations.num_in_hand} completions in hand, {self._options.slots} slots"
        version = self._generations.policy_version
        return f"v{version}, {in_hand}" if version >= 0 else f"waiting for weights, {in_hand}"

    def metrics(self) -> Iterator[Sample]:
        """Values of its metrics now, for a scrape."""
        generations, swaps = self._generations, self._swaps
        yield Sample("asyncrl_rollout_policy_version", generations.policy_version)
        yield Sample("asyncrl_rollout_slots", self._options.slots)
        yield Sample("asyncrl_rollout_requests", generations.occupancy.num_active("sampling"))
        yield Sample("asyncrl_rollout_trajectories_in_hand", generations.num_in_hand)
        yield Sample("asyncrl_rollout_trajectories_returned_total", self._returned_credits)
        yield Sample("asyncrl_rollout_tokens_total", generations.calls.num_tokens)
        for activity, seconds in generations.occupancy.seconds.items():
            yield Sample("asyncrl_rollout_seconds_total", seconds, {"activity": activity})
        yield Sample("asyncrl_rollout_swaps_total", swaps.number)
        yield Sample("asyncrl_rollout_pause_seconds_total", swaps.pause_s)
        yield Sample("asyncrl_rollout_receive_seconds_total", swaps.receive_s)
        for stage, number in generations.num_failed.items():
            yield Sample("asyncrl_rollout_failures_total", number, {"stage": stage})
        yield from model_samples(self._models())
        if held := generations.containers:
            yield Sample("asyncrl_rollout_containers", held.leased, {"state": "leased"})
            yield Sample("asyncrl_rollout_containers", held.warm, {"state": "warm"})
            yield Sample("asyncrl_rollout_container_oldest_seconds", held.oldest_s)
            yield Sample("asyncrl_rollout_container_seconds_total", held.seconds)
            yield Sample("asyncrl_rollout_containers_started_total", held.started)
            yield Sample("asyncrl_rollout_containers_failed_total", held.failed)

    # ── messages ────────────────────────────────────────────────────────────────────────────

    async def _handle(self, message: Message) -> None:
        match message:
            case Lease():
                self._start(message)
            case Settled(items=items, unfinished=unfinished):
                for item in unfinished:
                    self._generations.settle_unfinished(item)
                await self._return_credits([item.unit for item in items if self._generations.holds(item)])
            case Cancelled(lease_ids=lease_ids, units=units):
                await self._return_credits([*units, *self._generations.units_of(set(lease_ids))])
            case Transfer():
                self._spawn(self._transfer(message))
            case StoreValue() | Abort():
                self._hand_over(message)
            case Hold() | Release():
                self._hold(is_held=isinstance(message, Hold))
            case Sleep() | Wake() if self._sleeper:
                sleep_or_wake = self._wake if isinstance(message, Wake) else self._fall_asleep
                self._spawn(sleep_or_wake(self._sleeper))
            case Spools(spools=spools):
                self._spools.update(spools)
            case Drain() if self._on_drain:
                self._on_drain()
            case Reject() | Barred():
                _turned_away(message)
            case _:
                log.warning("message.unexpected", type=type(message).__name__)

    async def _offer(self) -> None:
        """Offer all credits, unless users of the host have requests in hand."""
        if not self._is_draining and self._generations.users.is_idle:
            await self._broker.send(Offer(self._returned_credits + self._capacity))

    async def _offer_when_idle(self) -> None:
        while True:
            await self._generations.users.until_busy()
            with self._generations.occupancy.doing("serving users"):
                await self._generations.users.until_idle()
            await self._offer()

    # ── generation ──────────────────────────────────────────────────────────────────────────

    def _start(self, lease: Lease) -> None:
        if self._is_draining:
            return  # The lease crossed with Draining; the broker leases it to another node after Bye.
        prefixes = {item.index: partial(self._fetch, lease, item) for item in lease.resume_from}
        for index in lease.indices:
            # The broker counts one credit per lease, so an expired earlier lease of this unit returns its own.
            self._returned_credits += self._generations.forget(Unit(lease.group_id, index, lease.split))
            self._generations.start(lease, index, prefixes.get(index))

    async def _fetch(self, lease: Lease, item: ResumePoint) -> SampledTrajectory:
        try:
            trajectory = await self._payloads.fetch(item.ref, FETCH_S)
        except (DecodeError, TimeoutError) as error:
            reason = str(error) or f"no answer within {FETCH_S:g} s"
            raise EngineError(f"cannot read the unfinished completion to resume from: {reason}") from error
        if problem := image_problem_of(trajectory, lease.prompt.images):
            raise EngineError(f"the stored part to resume from is damaged: {problem}")
        unit = Unit(lease.group_id, item.index, lease.split)
        return to_sampled(trajectory, unit, self._generations.limits(lease, item.index))

    async def _return_credits(self, units: list[Unit]) -> None:
        self._returned_credits += sum(self._generations.forget(unit) for unit in units)
        await self._offer()

    # ── results ─────────────────────────────────────────────────────────────────────────────

    async def _put_fresh(self) -> None:
        generations = self._generations
        while True:
            await generations.has_news.wait()
            await self._sleep(COLLECT_S)
            generations.has_news.clear()
            if generations.fatal_error:
                raise generations.fatal_error
            if fresh := generations.unsettled.take_fresh():
                await self._put(fresh)
                failpoint("rollout.put")
            if turns := generations.progress(only_turns=True):
                await self._put(turns)
                failpoint("rollout.turn_put")
            reports, generations.reports = generations.reports, []
            for report in reports:
                # A later lease of the same unit may be running already.
                if isinstance(report, Failed) and generations.holds(Leased(report.unit, report.lease_id)):
                    self._returned_credits += generations.forget(report.unit)
                await self._broker.send(report)
            if reports:
                await self._offer()

    async def _put_again(self) -> None:
        while True:
            await self._sleep(RESEND_S / 2)
            if late := self._generations.unsettled.take_overdue(self._clock()):
                log.warning("results.put_again", count=len(late))
                await self._put(late)

    async def _put_progress(self) -> None:
        while self._options.progress_every_s:
            await self._sleep(self._options.progress_every_s)
            if items := self._generations.progress():
                await self._put(items)

    async def _put(self, items: list[PutItem]) -> None:
        for chunk in cut_by_bytes(items, put_bytes):
            await self._spools.put(Put(self._identity.node, self._identity.incarnation, chunk))
            self._generations.unsettled.mark_put(chunk, self._clock())

    # ── devices shared with the trainer ─────────────────────────────────────────────────────

    async def _fall_asleep(self, sleeper: Sleeper) -> None:
        async with self._swap_lock:
            began_s = self._clock()
            num_bytes = await sleeper.sleep(finish=self._options.partial_rollout is not True)
            failpoint("rollout.asleep")
            await self._broker.send(Asleep(self._clock() - began_s, num_bytes))
            await self._broker.send(AskTurn())

    async def _wake(self, sleeper: Sleeper) -> None:
        async with self._swap_lock:
            await sleeper.wake()
        failpoint("rollout.woken")
        await self._swap()  # Weights from the spool may have come meanwhile.

    # ── weights ─────────────────────────────────────────────────────────────────────────────

    async def _transfer(self, transfer: Transfer) -> None:
        transfer_group, version, receiver = transfer.transfer_group, transfer.policy_version, self._receiver
        if receiver is None:
            await self._broker.send(TransferFailed(transfer_group, version, "this node's engine does not take weights"))
            return
        try:
            async with self._swap_lock:
                self._staged_version = -1  # This transfer overwrites the staging memory, even if it fails.
                receive = partial(self._receive_in_place, receiver) if self._options.is_in_place else receiver.transfer
                seconds = await receive(transfer)
                self._staged_version, self._receive_s = version, seconds
                failpoint("rollout.transferred")
        except TransferError as error:
            await self._broker.send(TransferFailed(transfer_group, version, str(error)))
            return
        await self._broker.send(Transferred(transfer_group, version, seconds, 0))
        await self._swap()

    def _hand_over(self, message: StoreValue | Abort) -> None:
        """Pass a message about a running transfer to the receiver, if there is one."""
        if self._receiver is None:
            return
        if isinstance(message, Abort):
            self._receiver.abort(message)
        else:
            self._receiver.deliver(message)

    def _hold(self, *, is_held: bool) -> None:
        self._is_held = is_held
        if not is_held:
            self._spawn(self._swap())

    async def _swap(self) -> None:
        generations = self._generations
        async with self._swap_lock:
            # The version need not increase: after a restart of broker or trainer one that was never live comes again.
            is_asleep = self._sleeper is not None and self._sleeper.is_asleep
            if self._is_held or is_asleep or self._receiver is None or self._staged_version < 0:
                return
            try:
                started_s = await self._pause()
                await self._engine.swap(self._staged_version, self._receiver.weights())
            finally:
                self._paused_s = None
                generations.occupancy.mark("swapping", is_active=False)
                await self._engine.resume()  # Also after an error: the engine belongs to the host.
            generations.allow_starts()
            failpoint("rollout.swapped")
            generations.policy_version, self._staged_version = self._staged_version, -1
            log.debug("policy.live", policy_version=generations.policy_version)
            if self._on_live:
                self._on_live()
            live = Live(generations.policy_version, self._clock() - started_s, self._receive_s)
            self._swaps.number += 1
            self._swaps.pause_s += live.pause_s
            self._swaps.receive_s += live.receive_s
            await self._broker.send(live)

    async def _pause(self) -> float:
        """Pause the engine unless it is paused already, and return the clock time of the pause."""
        if self._paused_s is None:
            if self._options.partial_rollout is not True:
                await self._generations.finish_running()
            self._paused_s = self._clock()
            self._generations.occupancy.mark("swapping", is_active=True)
            await self._engine.pause()
        return self._paused_s

    async def _receive_in_place(self, receiver: WeightReceiver, transfer: Transfer) -> float:
        """Pause, and receive into the engine's own weights. A failure leaves them mixed, and the engine paused."""
        await self._pause()
        try:
            return await receiver.transfer(transfer)
        except (TransferError, asyncio.CancelledError) as error:
            cause = str(error) or "the session ended"
            self._generations.end_with(EngineDied(f"only some of the engine's weights were replaced: {cause}"))
            raise

    def _spawn(self, coroutine: "asyncio._CoroutineLike[None]") -> asyncio.Task[None]:
        if self._tasks is None:
            raise LinkClosed("this rollout is not running")
        task = self._tasks.create_task(coroutine)
        self._children.add(task)
        task.add_done_callback(self._children.discard)
        return task


def _turned_away(message: Reject | Barred) -> None:
    """Raise `LinkRefused` for a session that is over; log why there is no work for a while."""
    if isinstance(message, Reject):
        raise LinkRefused(message.reason)
    log.warning("node.barred", cause=message.cause, seconds=message.pause_s)
