"""
Broker actor: the shell around the scheduler, with sockets, the clock, the ledger and the run directory.

    hub ─▶ Scheduler.handle ─▶ messages ─▶ hub            at once
                            └▶ records ─▶ ledger ─▶ `Settled`, `Batch` ─▶ hub       in groups, as fast as the disk syncs

Safe to embed: it installs no signal handler, leaves the logging configuration alone, and stops when its task is
cancelled.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Literal, cast

from asyncrl.actor.failpoints import reach
from asyncrl.actor.link import Hub, Link
from asyncrl.actor.message import Message
from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.broker.ledger.records import AnyRecord, NodeEvent, Rewarded
from asyncrl.broker.metrics.run_files import RunFiles
from asyncrl.broker.metrics.sample_files import SampleFiles
from asyncrl.broker.nodes.departures import DepartureBook
from asyncrl.broker.outbox import Event, Outgoing
from asyncrl.broker.scheduler import Scheduler
from asyncrl.broker.versions.rendezvous import Rendezvous
from asyncrl.client.payloads import PayloadClient
from asyncrl.config.sections import Config, to_json
from asyncrl.errors import AsyncrlError, RunFailed
from asyncrl.messages import (
    PROTOCOL,
    Bye,
    Drain,
    Drained,
    Exited,
    Finished,
    Hello,
    Live,
    Progress,
    Ready,
    Reject,
    Stepped,
    Stop,
    StoreGet,
    StoreSet,
    StoreValue,
    ToBroker,
    Welcome,
)
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.observe.samples import SamplesWriter

TICK_S = 0.25
SLEPT_S = 1.0
"""A tick this late means that the whole process stood still, and could hear no node."""
GOODBYE_S = 10.0
"""Seconds that nodes have to say Bye after the end of the run."""


class BrokerActor:
    """One run's broker. It borrows ``hub`` (the control socket), ``ledger`` and ``spool`` (for the samples files)."""

    def __init__(
        self,
        config: Config,
        scheduler: Scheduler,
        hub: Hub,
        ledger: Ledger,
        directory: RunDirectory,
        *,
        spool: Link,
        spool_address: str,
        broker_term: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._config = config
        self._scheduler = scheduler
        self._hub = hub
        self._ledger = ledger
        self._directory = directory
        self._payloads = PayloadClient(spool)
        self._samples = SampleFiles(self._payloads, SamplesWriter(directory.samples))
        self._spool_address = spool_address
        self._broker_term = broker_term
        self._clock = clock
        self._sleep = sleep
        self._files = RunFiles(config, scheduler, directory, clock)
        self._rendezvous = Rendezvous()
        self._departures = DepartureBook()
        self._layout: tuple[str, str] | None = None
        """First node that was ready, and its layout hash."""
        self._dirty = asyncio.Event()
        """Set when records or messages should be written now."""
        self._unsent: list[Outgoing] = []
        self._unwritten: list[AnyRecord] = []
        self._background: set[asyncio.Task[None]] = set()
        self._tasks: asyncio.TaskGroup | None = None
        self._changed = asyncio.Event()
        """Set after every message and tick: `_say_goodbye` then checks again if all nodes have left."""
        self._ended = asyncio.Event()
        self._cause = ""

    async def run(self) -> None:
        """Serve until the run is over; raises `RunFailed` with the cause if it ended early."""
        kind = "run.started" if self._broker_term == 1 else "run.resumed"
        self._files.event(kind, name=self._directory.path.name, window=self._scheduler.window.size)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                loops = (self._serve, self._tick, self._write, self._payloads.run)
                serving = [tasks.create_task(loop()) for loop in loops]
                await self._ended.wait()
                await self._say_goodbye()
                for task in serving:
                    task.cancel()
                await self._ledger.commit(self._unwritten)  # Departures of the last nodes.
        except BaseExceptionGroup as group:
            cause = group.exceptions[0]
            is_ours = isinstance(cause, AsyncrlError)
            self._cause = self._cause or (str(cause) if is_ours else f"{type(cause).__name__}: {cause}")
            self._announce_end()
            if is_ours:
                raise RunFailed(self._cause) from cause
            raise
        if self._cause:
            raise RunFailed(self._cause)

    def stop(self, cause: str = "") -> None:
        """End the run; with a cause it has failed."""
        if not self._ended.is_set():
            self._cause = cause
            self._ended.set()

    # ── loops ───────────────────────────────────────────────────────────────────────────────

    async def _serve(self) -> None:
        while True:
            peer, message = await self._hub.receive()
            with self._deciding():
                self._handle(peer, cast("ToBroker", message))

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + TICK_S
            await self._sleep(TICK_S)
            late_s = loop.time() - due_s
            with self._deciding():
                if late_s > SLEPT_S:
                    self._scheduler.slept(late_s)
                for node in self._scheduler.tick(self._clock()):
                    self._hub.forget(node.peer)
            self._dirty.set()

    async def _write(self) -> None:
        """Write records in transactions: one takes everything that arrived while the previous one ran."""
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            unwritten, self._unwritten = self._unwritten, []
            unsent, self._unsent = self._unsent, []
            if unwritten:
                reach("broker.decided")
                await self._ledger.commit(unwritten)
                reach("broker.committed")
            for outgoing in unsent:
                self._hub.send(outgoing.peer, outgoing.message)
            if self._scheduler.is_finished and not self._unwritten:
                self.stop()

    # ── one message ─────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def _deciding(self) -> Iterator[None]:
        """Run scheduler code, then send and record its output; a `RunFailed` of it ends the run."""
        try:
            yield
        except RunFailed as failure:
            self.stop(str(failure))
        self._flush()

    def _handle(self, peer: str, message: ToBroker) -> None:
        match message:
            case Hello():
                self._welcome(peer, message)
            case Ready():
                self._ready(peer, message)
            case Bye(reason=reason):
                self._hub.forget(peer)
                self._scheduler.left(peer, reason, self._clock(), on_purpose=True)
            case Drain(node=name):
                self._drain(peer, name)
            case StoreSet(group=group, key=key, value=value):
                for waiting in self._rendezvous.set(group, key, value):
                    self._hub.send(waiting, StoreValue(group, key, value))
            case StoreGet(group=group, key=key):
                if (found := self._rendezvous.get(group, key, peer)) is not None:
                    self._hub.send(peer, StoreValue(group, key, found))
            case Stepped():
                self._stepped(peer, message)
            case Exited():
                self._exited(message)
            case Live():
                self._files.swapped(message)
                self._scheduler.handle(peer, message, self._clock())
            case _:
                self._scheduler.handle(peer, message, self._clock())

    def _welcome(self, peer: str, hello: Hello) -> None:
        if reason := self._refusal(hello):
            self._reject(peer, hello.node, reason)
            return
        self._hub.send(
            peer,
            Welcome(
                broker_term=self._broker_term,
                run_dir=str(self._directory.path.resolve()),
                config=to_json(self._config),
                spool=self._spool_address,
                beat_s=self._config.broker.beat_s,
            ),
        )
        for earlier in self._scheduler.nodes.earlier(hello):
            if earlier.peer != peer:
                self._hub.forget(earlier.peer)
        self._scheduler.joined(peer, hello, self._clock())

    def _refusal(self, hello: Hello) -> str:
        """Reason to reject a node; empty to welcome it."""
        if self._ended.is_set():
            return f"this run is over: {self._cause or 'it is complete'}"
        if hello.protocol != PROTOCOL:
            return f"this broker speaks protocol {PROTOCOL}, {hello.node} speaks {hello.protocol}: install one version"
        trainer = self._scheduler.nodes.trainer() if hello.role == "trainer" else None
        if trainer and trainer.name != hello.node:  # A new incarnation of the same node replaces it.
            return f"this run has a trainer already: {trainer.name} (started as {trainer.incarnation})"
        return ""

    def _ready(self, peer: str, message: Ready) -> None:
        """Reject a node whose model differs from the first node's: it could not receive the weights."""
        if (node := self._scheduler.nodes.get(peer)) is None:
            return
        if message.layout_hash:
            first, layout_hash = self._layout = self._layout or (node.name, message.layout_hash)
            if message.layout_hash != layout_hash:
                reason = (
                    f"{node.name} has another model than {first}: weight layouts {message.layout_hash[:12]} and "
                    f"{layout_hash[:12]} differ; give both the same model.path"
                )
                self._reject(peer, node.name, reason)
                self._scheduler.left(peer, reason, self._clock())
                return
        self._files.event("node.ready", node=node.name, role=node.role)
        self._scheduler.handle(peer, message, self._clock())

    def _reject(self, peer: str, name: str, reason: str) -> None:
        self._files.event("node.rejected", node=name, cause=reason)
        self._hub.send(peer, Reject(reason))

    def _stepped(self, peer: str, stepped: Stepped) -> None:
        """Write metrics and samples of a step, once: a resumed trainer repeats the steps since its checkpoint."""
        if self._scheduler.nodes.heard(peer, self._clock()) is None:
            return
        groups = self._scheduler.training.batches.taken(stepped.step) or []
        if (line := self._files.step(stepped, groups)) is None:
            return
        for supervisor in self._scheduler.nodes.of("supervisor"):
            self._hub.send(supervisor.peer, Progress(stepped.step, self._config.run.steps, line))
        if self._config.broker.samples and self._tasks:
            task = self._tasks.create_task(self._samples.write(stepped, groups))
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    def _drain(self, peer: str, name: str) -> None:
        node = self._departures.ask(name, peer, self._scheduler.nodes)
        if isinstance(node, str):
            self._hub.send(peer, Drained(name, node))
            return
        self._files.event("node.draining", node=name, asked_by=peer)
        self._hub.send(node.peer, Drain(name))

    def _departed(self, event: Event) -> None:
        fields = event.fields
        for asker in self._departures.left(f"{fields['node']}.{fields['incarnation']}"):
            problem = "" if event.kind == "node.left" else f"it was lost before it could leave: {fields['cause']}"
            self._hub.send(asker, Drained(fields["node"], problem))

    def _exited(self, message: Exited) -> None:
        self._files.event("node.exited", node=message.node, cause=message.cause, restarting=message.restarting)
        if message.is_needed and not message.restarting:
            self.stop(f"{message.node} {message.cause}")
        for node in [n for n in self._scheduler.nodes.all() if n.name == message.node]:
            self._hub.forget(node.peer)
            self._scheduler.left(node.peer, message.cause, self._clock())

    # ── out ─────────────────────────────────────────────────────────────────────────────────

    def _flush(self) -> None:
        outbox, records, events = self._scheduler.drain()
        for event in events:
            self._files.event(event.kind, **event.fields)
            records += _node_record(event)
            if event.kind in ("node.left", "node.lost"):
                self._departed(event)
        self._unwritten.extend(records)
        for outgoing in outbox:
            if outgoing.once_durable:
                self._unsent.append(outgoing)
            else:
                self._hub.send(outgoing.peer, outgoing.message)
        # `Rewarded` records alone wait for the next tick: they are half of all records, no node waits for one, and a
        # trajectory whose reward is lost is graded again.
        is_urgent = any(not isinstance(record, Rewarded) for record in records)
        if is_urgent or self._unsent or self._scheduler.is_finished:
            self._dirty.set()
        self._changed.set()

    async def _say_goodbye(self) -> None:
        """Announce the end, and wait until all nodes have left."""
        if self._background:
            await asyncio.wait(self._background, timeout=GOODBYE_S)
        self._announce_end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                while any(node.role != "spool" for node in self._scheduler.nodes.all()):
                    self._changed.clear()
                    await self._changed.wait()

    def _announce_end(self) -> None:
        self._cause = self._files.conclude(self._cause)
        for node in self._scheduler.nodes.all():
            message: Message = Stop(self._cause or "the run is complete", failed=bool(self._cause))
            if node.role == "supervisor":
                message = Finished("failed" if self._cause else "finished", self._cause)
            self._hub.send(node.peer, message)


_NODE_EVENTS: dict[str, Literal["joined", "left", "lost"]] = {
    "node.joined": "joined",
    "node.left": "left",
    "node.lost": "lost",
}


def _node_record(event: Event) -> list[AnyRecord]:
    if (kind := _NODE_EVENTS.get(event.kind)) is None:
        return []
    fields = event.fields
    cause = str(fields.get("cause", ""))
    return [NodeEvent(fields["node"], fields["incarnation"], fields["role"], kind, cause, time.time())]
