"""
Ranks of one machine of a trainer: child processes, and on the first machine this process, which is rank 0.

    trainer-0 ──┬── starts ─▶ trainer-0-rank-1 ─┐
     = rank 0   ├── starts ─▶ trainer-0-rank-2 ─┼─ torch.distributed; they meet through the hub of rank 0
                └───────────────────────────────┘

`asyncrl.runtime.trainer_machines` has the ranks of other machines. If a rank dies or hangs, all ranks end, so ranks
never disagree on the progress of the run.
"""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import msgspec
from msgspec import Struct

from asyncrl.config.config import Config
from asyncrl.config.sections.trainer import Trainer
from asyncrl.errors import ConfigError, LinkError, MachineLost, RankDied
from asyncrl.files.access import new_secret, write_secret
from asyncrl.messages.session import Stop
from asyncrl.messages.trainer import TrainerMachine
from asyncrl.messages.wire import CODEC
from asyncrl.runtime.process import exit_unless_cancelled
from asyncrl.runtime.sessions import NodeSession
from asyncrl.trainer.ranks.rank_hub import OtherRanks, RankHub, rank_store
from asyncrl.trainer.ranks.ranks import RankGroup, Ranks, SingleRank
from asyncrl.weights.groups.store import LinkStore, shut_down
from asyncrl.wire.addresses import tcp
from asyncrl.wire.curve import hub_keys_of, needs_keys
from asyncrl.wire.zmq_hub import ZmqHub
from asyncrl.workers.child import Child, describe_exit, module_command

# ── place ─────────────────────────────────────────────────────────────────────────────────────
# A machine of a trainer, and a rank: where they are among the others.


class RankPlace(Struct, frozen=True):
    """Place of one rank among the others."""

    rank: int
    """Number of the rank among all ``size`` ranks."""
    local_rank: int
    """Number of the rank on its machine, and of its device; 0 reads the machine's checkpoints."""
    size: int
    interface: str
    """Address of the machine whose network interface the collectives use."""
    broker: str
    """Address at which the machine reaches the broker."""
    secret_file: str = ""
    """File with `HubAddress.secret`; empty for a unix socket."""
    copies: dict[str, str] = {}
    """Model directories of the machine in place of those of the configuration."""


class HubAddress(Struct, frozen=True):
    """Hub of rank 0, as the first machine announces it through the broker's links."""

    address: str
    secret: bytes
    """Made for one group of machines: with it, and only with it, ranks connect to a TCP address."""


class MachinePlace(Struct, frozen=True):
    """
    One machine of a trainer.

    Example, for two machines with two ranks each, ``index`` 1:
        names == ["a-rank-0", "a-rank-1", "b-rank-2", "b-rank-3"]; own == range(2, 4)
    """

    machines: Sequence[TrainerMachine]
    """All machines of the trainer, the first one first."""
    index: int
    """Index of this machine."""
    ranks: int
    """Ranks of each machine."""
    interface: str
    """Address of this machine on which its process groups, and rank 0's hub, listen."""

    @property
    def size(self) -> int:
        """Ranks of all machines."""
        return len(self.machines) * self.ranks

    @property
    def own(self) -> range:
        """Ranks of this machine, in the order of their local ranks."""
        return range(self.index * self.ranks, (self.index + 1) * self.ranks)

    @property
    def names(self) -> list[str]:
        """Node name of each rank."""
        return [f"{self.machines[rank // self.ranks].node}-rank-{rank}" for rank in range(self.size)]

    @property
    def labels(self) -> list[str]:
        """Name and host of each rank, for error messages."""
        hosts = [self.machines[rank // self.ranks].host for rank in range(self.size)]
        return [f"{name} on {host}" for name, host in zip(self.names, hosts, strict=True)]


def only_machine(node: str, ranks: int, interface: str) -> MachinePlace:
    """The place of a trainer of one machine."""
    return MachinePlace([TrainerMachine(node, socket.gethostname())], 0, ranks, interface)


# ── first rank ────────────────────────────────────────────────────────────────────────────────
# Rank 0 of a trainer in this process, and the end of all waits for other ranks.
#
#     load thread      form ─▶ all ranks have joined the hub ─▶ the store ─▶ RankGroup ─▶ collectives
#     event loop       abort ─▶ ends each of these waits
#     timer            ends the process if a library waits all the same

START_S = 120.0
"""Time for all ranks to start and import their libraries."""


class FirstRankWork(Protocol):
    """The first rank's part."""

    def __call__(self, *, form: Callable[[], Ranks], others: OtherRanks) -> Awaitable[None]:
        """``form`` forms the group of all ranks; it is called on the thread that loads the model."""


def form_group(trainer: Trainer, store: LinkStore, place: RankPlace) -> RankGroup:
    """Join the group of all ranks; raises `RankDied` if one does not join, or the store is abandoned."""
    return RankGroup(
        store,
        rank=place.rank,
        size=place.size,
        timeout_s=trainer.collective_timeout_s,
        device_index=place.local_rank,
        kind=trainer.device,
        interface=place.interface,
        shard_size=trainer.shard_size,
        sequence_parallel=trainer.sequence_parallel,
    )


def end_waits(store: LinkStore, group: RankGroup | None, reason: str) -> None:
    """End all waits of this process for other ranks, also those in a collective of another thread."""
    store.abandon(reason)
    shut_down(store.values())
    if group:
        group.abort()


class FirstRank:
    """Rank 0 in this process: forms the group on the thread that loads the model, and can end its collectives."""

    def __init__(self, hub: RankHub, store: LinkStore, trainer: Trainer, place: RankPlace, work: FirstRankWork) -> None:
        self._hub = hub
        self._store = store
        self._trainer = trainer
        self._place = place
        self._work = work
        self._group: RankGroup | None = None
        self._is_over = threading.Event()
        self._joining: Future[None] | None = None
        """Wait of the other thread for all ranks to join the hub."""

    async def run(self) -> None:
        """Do the work, and close the group after it."""
        loop = asyncio.get_running_loop()
        try:
            await self._work(form=partial(self._form, loop), others=self._hub)
        finally:
            if self._group:
                self._group.close()

    def abort(self, reason: str) -> None:
        """End all waits for other ranks, those in a collective of another thread too."""
        self._is_over.set()
        if self._joining:
            self._joining.cancel()
        end_waits(self._store, self._group, reason)

    def _form(self, loop: asyncio.AbstractEventLoop) -> Ranks:
        if self._place.size == 1:
            return SingleRank(self._trainer.device)
        self._joining = asyncio.run_coroutine_threadsafe(self._hub.wait_for_all(START_S), loop)
        try:
            if not self._is_over.is_set():  # Checked now, so that `abort` cancels the wait or is seen here.
                self._joining.result()
                self._group = form_group(self._trainer, self._store, self._place)
        except CancelledError:
            pass
        if self._group is None or self._is_over.is_set():
            raise RankDied("the group of ranks has ended while it was formed")
        return self._group


# ── ranks ─────────────────────────────────────────────────────────────────────────────────────

CAUSE_S = 5.0
"""Time to find the dead rank after a collective failed: the collective fails first."""
LEAVE_S = 10.0
"""Time for the other ranks to exit when the run is over."""
MARGIN_S = 2.0
"""Time for which a silent rank of another machine is left to the broker, which sees if all of the machine is lost."""
CHECK_S = 1.0
"""Interval between checks for silent ranks."""
Failure = RankDied | ConfigError


async def with_ranks(
    session: NodeSession,
    work: FirstRankWork,
    place: MachinePlace,
    *,
    announce: Callable[[HubAddress], Awaitable[None]] | None = None,
    lost: Awaitable[MachineLost] | None = None,
) -> None:
    """
    Run ``work`` as the first rank, and start and end the other ranks of this machine around it.

    Args:
        announce: Called with the address of the hub that the ranks of other machines join.
        lost: Ends with the error when the group of machines ends; None if there is only one.

    Raises:
        MachineLost: The group has ended because of another machine.
        RankDied: Another rank of this machine died or hung; names it and the cause.
        ConfigError: Another rank cannot run the configuration.
        AsyncrlError: Raised by ``work``.
    """
    config = session.config
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="asyncrl-ranks-"))
        secret = new_secret()
        # Other machines need a TCP port, which a broker at a unix socket cannot have.
        is_local = len(place.machines) == 1 or not needs_keys(session.run.broker)
        bind = f"ipc://{folder}/hub" if is_local else tcp(place.interface, 0)
        hub = ZmqHub(bind, CODEC, keys=hub_keys_of(secret))
        stack.push_async_callback(hub.aclose)
        silence_s = config.broker.node_ttl_s + (MARGIN_S if lost else 0.0)
        rank_hub = RankHub(hub, names=place.names[1:], welcome=session.welcome, silence_s=silence_s)
        address = HubAddress(hub.address, secret)
        children = await start_ranks(stack, session, place, address, leave_s=LEAVE_S)
        if announce:
            await announce(address)
        meeting = hub.local.connect(f"{session.who.peer}.store")
        timeout_s = config.trainer.collective_timeout_s
        store = await stack.enter_async_context(rank_store(meeting, place.labels, timeout_s))
        kind = RankDied if lost is None else MachineLost
        patience = patience_s(config, place)
        watching = [exit_error(child, patience) for child in children]
        watching += [_silence_error(rank_hub, kind), *([_result(lost)] if lost else [])]
        rank_place = RankPlace(0, 0, place.size, place.interface, session.run.broker)
        first_rank = FirstRank(rank_hub, store, config.trainer, rank_place, work)
        hearing = asyncio.create_task(rank_hub.listen())
        try:
            await _while_ranks_live(first_rank, watching, children, lambda error: kind(str(error)), patience)
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
        rank_hub.broadcast(Stop("the run is over"))
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(child.wait() for child in children)), LEAVE_S)


async def start_ranks(
    stack: AsyncExitStack, session: NodeSession, place: MachinePlace, hub: HubAddress, *, leave_s: float
) -> list[Child]:
    """Start all ranks of this machine except rank 0, to join ``hub``; ``stack`` ends them."""
    secret_file = ""
    if needs_keys(hub.address):
        secret_file = f"{stack.enter_context(TemporaryDirectory(prefix='asyncrl-ranks-'))}/secret"
        write_secret(Path(secret_file), hub.secret)
    children = []
    for local_rank, rank in enumerate(place.own):
        if rank:
            name = place.names[rank]
            own = RankPlace(
                rank, local_rank, place.size, place.interface, session.run.broker, secret_file, dict(session.copies)
            )
            where = msgspec.json.encode(own).decode()
            command = module_command("asyncrl.runtime.rank", hub.address, name, where)
            children.append(Child(name, command, None, session.run.environment()))
    for child in children:
        stack.push_async_callback(child.end, leave_s)
        await child.start()
    return children


def patience_s(config: Config, place: MachinePlace) -> float:
    """Seconds to find out who is gone, after a rank noticed that one is: the time after which a machine is lost."""
    return CAUSE_S + (config.broker.node_ttl_s if len(place.machines) > 1 else 0.0)


async def exit_error(
    child: Child, patience_s: float, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> Failure:
    """Wait for the exit of a rank, and return it as an error. One that left because of another leaves it time."""
    code = await child.wait()
    if code in (RankDied.exit_code, LinkError.exit_code):
        await sleep(patience_s)
    kind = ConfigError if code == ConfigError.exit_code else RankDied
    return kind(f"{child.name} {describe_exit(code)}" + (f": {child.last_line()}" if code > 0 else ""))


async def _while_ranks_live(
    first_rank: FirstRank,
    watching: Sequence[Coroutine[object, object, Failure]],
    children: Sequence[Child],
    unnamed: Callable[[BaseException | None], Failure],
    patience_s: float,
) -> None:
    """
    Run the first rank, and end all ranks as soon as one dies.

    Args:
        watching: Each ends with an error when a rank has died.
        unnamed: Makes the error if only the `RankDied` of the first rank is known after ``patience_s``.

    Raises:
        RankDied, ConfigError: A rank ended; takes precedence over the resulting `RankDied` of the first rank.
    """
    working = asyncio.create_task(first_rank.run())
    watchers = [asyncio.create_task(watcher) for watcher in watching]
    try:
        done, _ = await asyncio.wait({working, *watchers}, return_when=asyncio.FIRST_COMPLETED)
        if working in done and not isinstance(working.exception(), RankDied):
            return working.result()
        dead, _ = await asyncio.wait(watchers, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        error = dead.pop().result() if dead else unnamed(working.exception())
        await asyncio.gather(*(child.end(0.0) for child in children))
        await _leave_collectives(first_rank, working, error)
        raise error
    finally:
        for task in watchers:
            task.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)


async def _leave_collectives(first_rank: FirstRank, working: "asyncio.Task[None]", error: Failure) -> None:
    """Wait for the end of ``working``; end this process if a library does not let go of its thread."""
    timer = exit_unless_cancelled(error)
    first_rank.abort(str(error))
    working.cancel()
    with suppress(asyncio.CancelledError, RankDied):
        await working
    timer.cancel()


async def _result(lost: Awaitable[MachineLost]) -> Failure:
    return await lost


async def _silence_error(rank_hub: RankHub, kind: type[RankDied]) -> Failure:
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + CHECK_S
        await asyncio.sleep(CHECK_S)
        if loop.time() - due_s > CHECK_S:
            continue  # This loop was blocked: messages of the ranks may be waiting unread.
        try:
            rank_hub.require_all()
        except RankDied as error:
            return kind(str(error))
