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
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Literal

from msgspec.structs import replace

from asyncrl.broker.ending import RunEnding
from asyncrl.broker.groups.group import Group
from asyncrl.broker.handlers import shell
from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.broker.ledger.records import AnyRecord, NodeEvent, Rewarded, Written
from asyncrl.broker.metrics.readings import Readings
from asyncrl.broker.metrics.run_files import RunFiles
from asyncrl.broker.metrics.sample_files import SampleFiles
from asyncrl.broker.operators import Operators
from asyncrl.broker.outbox import Event, OutgoingMessage
from asyncrl.broker.scheduler import Scheduler
from asyncrl.broker.sessions import RunIdentity, Sessions
from asyncrl.broker.staleness_control import BY, KEY, StalenessChoice
from asyncrl.broker.status import LongSilence, RestartBook, sentence
from asyncrl.broker.traces import Traces
from asyncrl.config.config import Config
from asyncrl.errors import AsyncrlError, ConfigError, RunFailed
from asyncrl.failpoints import failpoint
from asyncrl.files.checkpoints import MANIFEST, file_entry, step_folder
from asyncrl.messages.codec import Message
from asyncrl.messages.files import ModelFiles
from asyncrl.messages.session import Bye, Hello, StoreGet, StoreSet, StoreValue
from asyncrl.messages.spool import SpoolAddress
from asyncrl.messages.supervisor import Exited, Interrupt, Progress
from asyncrl.messages.trainer import Batch, Commit, Stepped
from asyncrl.messages.weights import Live
from asyncrl.records.events import EventKind
from asyncrl.records.metrics import Sample
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.samples import SamplesWriter
from asyncrl.records.states import INTERRUPTED
from asyncrl.weights.groups.rendezvous import Rendezvous
from asyncrl.wire.link import Hub, Link
from asyncrl.wire.spools import ImageCache, PayloadClient, SpoolLinks

TICK_S = 0.25
LOCKED_S = 5.0
"""Seconds for which another program has locked the ledger until that is told: a look at it with a query takes less."""
IMAGE_BYTES = 64 << 20
"""Pictures that are kept for the next samples file."""
SLEPT_S = 1.0
"""A tick this late means that the whole process stood still, and could hear no node."""


class BrokerActor:
    """
    One run's broker. It borrows ``hub`` (the control socket) and ``ledger``, and reads payloads for the samples files.

    Args:
        connect: Opens a link to a spool.
        models: Model directories of this machine, which nodes compare with theirs.
        traces: Told everything that is decided; None traces nothing.
    """

    def __init__(
        self,
        config: Config,
        scheduler: Scheduler,
        hub: Hub,
        ledger: Ledger,
        directory: RunDirectory,
        *,
        connect: Callable[[SpoolAddress], Link],
        broker_term: int,
        run_id: str,
        models: Sequence[ModelFiles] = (),
        traces: Traces | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._config = config
        self._scheduler = scheduler
        self._hub = hub
        self._ledger = ledger
        self._directory = directory
        self._spools = SpoolLinks(connect, scheduler.spools.told_to(""))
        self._spools_known = scheduler.spools.revision
        self._samples = SampleFiles(
            PayloadClient(self._spools),
            ImageCache(self._spools, IMAGE_BYTES),
            SamplesWriter(directory.samples),
            config.broker.spool_ttl_s,
            lambda step, num: self._files.event("samples.lost", step=step, trajectories=num),
            written=lambda path, sha256: self._record(Written(str(path.relative_to(directory.path)), sha256)),
        )
        self._broker_term = broker_term
        self._traces = traces
        self._clock = clock
        self._sleep = sleep
        self._files = RunFiles(config, scheduler, directory, clock, lambda: ledger.head, written=self._record)
        self._readings = Readings(config, scheduler, ledger, self._files.totals)
        self._silence = LongSilence(clock())
        self._rendezvous = Rendezvous()
        self._restarts = RestartBook()
        self._operators = Operators(
            scheduler, hub, self._files, run=directory.path.name, clock=clock, restarts=self._restarts
        )
        self._dirty = asyncio.Event()
        """Set when records or messages should be written now."""
        self._unsent: list[OutgoingMessage] = []
        self._unwritten: list[AnyRecord] = []
        self._locked_s = 0.0
        """Seconds for which the ledger has been locked, once that was told; else 0."""
        self._tasks: asyncio.TaskGroup | None = None
        self._ending = RunEnding(scheduler.nodes, hub, self._files, self._samples)
        run = RunIdentity(run_id, str(directory.path.resolve()), broker_term, list(models))
        self._sessions = Sessions(
            run, scheduler, hub, files=self._files, ending=self._ending, restarts=self._restarts, clock=clock
        )
        rules = dict.fromkeys(scheduler.rules, self._decide)
        self._handlers = rules | shell.table(self, self._sessions, self._operators)
        """The handler of each message to the broker: for most of them the rule alone."""

    async def run(self) -> None:
        """
        Serve until the run is over or `suspend` is called.

        Raises `RunFailed` with the cause of an early end, and `RunInterrupted` if it was asked for.
        """
        kind: EventKind = "run.started" if self._broker_term == 1 else "run.resumed"
        name, window = self._directory.path.name, self._scheduler.window.size
        self._files.event(kind, name=name, window=window, start=self._broker_term)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                loops = (self._serve, self._tick, self._write, self._spools.run)
                serving = [tasks.create_task(loop()) for loop in loops]
                # An earlier broker may have died before it wrote these; the spool still has their payloads.
                for step, version in self._files.versions.items():
                    self._sample(Stepped(step, version, {}), self._scheduler.training.trained(step))
                await self._ending.wait()
                await self._ending.say_goodbye()
                for task in serving:
                    task.cancel()
                await self._write_departures()
        except BaseExceptionGroup as group:
            cause = group.exceptions[0]
            is_ours = isinstance(cause, AsyncrlError)
            ending = self._ending
            ending.cause = ending.cause or (str(cause) if is_ours else f"{type(cause).__name__}: {cause}")
            ending.announce()
            if is_ours:
                raise RunFailed(ending.cause) from cause
            raise
        finally:
            if self._traces:
                self._traces.stop()
        if error := self._ending.error:
            raise error

    @property
    def is_suspended(self) -> bool:
        """True once the broker was told to leave the run as it is."""
        return self._ending.is_suspended

    def metrics(self) -> Iterable[Sample]:
        """Values of its metrics now, for a scrape."""
        return self._readings

    def stop(self, cause: str = "", *, is_interrupted: bool = False) -> None:
        """End the run; with a cause it has failed."""
        if self._ending.stop(cause, is_interrupted=is_interrupted):
            self._scheduler.is_over = True

    def interrupt(self, cause: str = "") -> None:
        """End the run early. It can be resumed: first the trainer saves a checkpoint, and rollouts what they sample."""
        self.stop(cause or INTERRUPTED, is_interrupted=True)

    def suspend(self, cause: str) -> None:
        """Stop serving, and leave the run as it is: a broker that serves it again continues it."""
        self._ending.suspend(cause)

    def lost(self, peers: Sequence[str], cause: str) -> None:
        """The connections of these peers have ended for good."""
        with self._deciding():
            for peer in peers:
                self._scheduler.departed(peer, cause, self._clock())

    def follow(self, choice: StalenessChoice) -> None:
        """Set the staleness that a plan fitted to the run has chosen; it is recorded like an operator's decision."""
        settings = self._scheduler.settings
        if not settings.is_auto or choice.before != settings.config.schedule.staleness_bound:
            return  # An operator has set it meanwhile.
        fields = {"staleness": choice.staleness, "before": choice.before, "predicted_s": choice.predicted_s}
        self._files.event("staleness.chosen", **fields, reason=choice.reason)
        if choice.staleness == choice.before:
            return
        try:
            values = settings.assigned([f"{KEY}={choice.staleness:g}"])
        except ConfigError as error:
            self.unplanned(str(error))
            return
        with self._deciding():
            self._scheduler.set_settings(values, by=BY, at_s=time.time(), now_s=self._clock())

    def unplanned(self, cause: str) -> None:
        """No plan could be fitted for ``schedule.staleness = "auto"``: the run goes on as it is."""
        self._files.event("staleness.unplanned", cause=cause)

    # ── loops ───────────────────────────────────────────────────────────────────────────────

    async def _serve(self) -> None:
        while True:
            peer, message = await self._hub.receive()
            with self._deciding():
                self._handle(peer, message)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + TICK_S
            await self._sleep(TICK_S)
            late_s = loop.time() - due_s
            with self._deciding():
                if late_s > SLEPT_S:
                    self._scheduler.clock_jumped(late_s)
                for node in self._scheduler.tick(self._clock()):
                    self._hub.forget(node.peer)
                self._sessions.tick()
                self._break_silence()
                self._tell_of_lock()
            self._files.tick()
            self._dirty.set()

    def _break_silence(self) -> None:
        """Tell supervisors what a run with weights does, if it has printed nothing for longer than usual."""
        scheduler, now_s = self._scheduler, self._clock()
        if scheduler.transfers.live_version < 0 or scheduler.is_over:
            return
        news = len(self._files.versions), len(scheduler.evaluation.results)
        if silent_s := self._silence.due(news, now_s):
            scheduler.supervisors.notice(sentence(scheduler, silent_s, now_s))

    def _tell_of_lock(self) -> None:
        """Tell once that another program keeps the ledger locked, and once that it has let go."""
        locked_s = self._ledger.lock_wait.waited_s
        if locked_s >= LOCKED_S and not self._locked_s:
            cause = f"{self._ledger.locked_by} has locked the ledger: the run waits until its transaction ends"
            self._files.event("ledger.locked", cause=cause)
        elif self._locked_s and not locked_s:
            self._files.event("ledger.unlocked", waited_s=round(self._locked_s))
        self._locked_s = locked_s if locked_s >= LOCKED_S else 0.0

    async def _write(self) -> None:
        """Write records in transactions: one takes everything that arrived while the previous one ran."""
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            unwritten, self._unwritten = self._unwritten, []
            unsent, self._unsent = self._unsent, []
            if unwritten:
                failpoint("broker.decided")
                await self._ledger.commit(unwritten)
                failpoint("broker.committed")
            for outgoing in unsent:
                message, head = outgoing.message, self._ledger.head
                if isinstance(message, Batch):  # The trainer's checkpoints keep the digest, on whatever machine.
                    message = replace(message, ledger_records=head.num_records, ledger_head=head.digest)
                self._hub.send(outgoing.peer, message)
            if self._scheduler.is_finished and not self._unwritten:
                self.stop()

    async def _write_departures(self) -> None:
        """Write what is left: departures of the last nodes. A locked ledger does not hold up the end for long."""
        self._ledger.leave()
        try:
            await self._ledger.commit(self._unwritten)
        except RunFailed as error:
            if not self._ledger.lock_wait.has_given_up:
                raise
            # None of it was acknowledged, so the nodes say it again to the next broker.
            self._files.event("ledger.left_locked", cause=str(error))

    def _record(self, record: AnyRecord) -> None:
        """Write a record that no rule reads with the next transaction."""
        self._unwritten.append(record)
        self._dirty.set()

    # ── one message ─────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def _deciding(self) -> Iterator[None]:
        """Run scheduler code, then send and record its output; a `RunFailed` of it ends the run."""
        try:
            yield
        except RunFailed as failure:
            self.stop(str(failure))
        self._flush()

    def _handle(self, peer: str, message: Message) -> None:
        if isinstance(message, Hello) or not self._scheduler.refuses(peer, message):
            self._handlers[type(message)](message.as_shown(), peer)
        elif isinstance(message, Bye) and not self._scheduler.nodes.get(peer):
            self._hub.forget(peer)  # It only asked for the configuration.

    def _decide(self, message: Message, peer: str) -> None:
        self._scheduler.handle(peer, message, self._clock())

    @shell
    def _bye(self, message: Bye, peer: str) -> None:
        self._hub.forget(peer)
        self._scheduler.departed(peer, message.reason, self._clock(), on_purpose=message.is_on_purpose)

    @shell
    def _exited(self, message: Exited, peer: str) -> None:
        self._files.event("node.exited", node=message.node, cause=message.cause, restarting=message.restarting)
        self._restarts.exited(message, peer, self._clock())
        if message.is_needed and not message.restarting:
            self.stop(f"{message.node} {message.cause}")
        for node in self._scheduler.nodes.named(message.node):
            self._hub.forget(node.peer)
            self._scheduler.departed(node.peer, message.cause, self._clock())

    @shell
    def _interrupted(self, message: Interrupt, peer: str) -> None:
        self.interrupt(message.cause)

    @shell
    def _store_set(self, message: StoreSet, peer: str) -> None:
        group, key, value = message.group, message.key, message.value
        if problem := self._rendezvous.problem_of(group, key, value):
            self._scheduler.refuse(peer, message, problem)
            return
        for waiting in self._rendezvous.set(group, key, value):
            self._hub.send(waiting, StoreValue(group, key, value))

    @shell
    def _store_get(self, message: StoreGet, peer: str) -> None:
        group, key = message.group, message.key
        if (found := self._rendezvous.get(group, key, peer)) is not None:
            self._hub.send(peer, StoreValue(group, key, found))

    @shell
    def _swapped(self, message: Live, peer: str) -> None:
        self._files.swap_times.add(message)
        self._decide(message, peer)

    # ── steps and their samples ─────────────────────────────────────────────────────────────

    @shell
    def _stepped(self, message: Stepped, peer: str) -> None:
        """Write metrics and samples of a step, once: a resumed trainer repeats the steps since its checkpoint."""
        self._decide(message, peer)
        step, training = message.step, self._scheduler.training
        if self._traces:
            self._traces.stepped(step)
        groups = training.trained(step)
        line = self._files.step(message, groups, is_computed=training.has_computed(step, peer))
        if line is not None:
            failpoint("broker.step_recorded")
            self._readings.stepped(line)
            for supervisor in self._scheduler.nodes.with_role("supervisor"):
                self._hub.send(supervisor.peer, Progress(step, training.num_steps, line))
        self._sample(message, groups)

    def _sample(self, stepped: Stepped, groups: Sequence[Group]) -> None:
        if self._config.broker.samples and self._tasks:
            self._samples.begin(self._tasks, stepped, groups)

    def _keep_answers(self) -> None:
        """Write completions of evaluations that have just ended, before the next commit may release their payloads."""
        number, schedule = self._config.evaluation.answers, self._config.schedule
        for evaluation in self._scheduler.evaluation.take_finished():
            if number and self._tasks:
                version = evaluation.policy_version
                steps = min(version * schedule.steps_per_publish, self._scheduler.training.num_steps)
                self._samples.begin_answers(self._tasks, steps, version, evaluation.spread(number))

    @shell
    def _commit(self, message: Commit, peer: str) -> None:
        """Apply a commit once the samples of the steps that it lets go of are written: their payloads go with them."""
        unwritten = self._samples.being_written(self._scheduler.training.committed_step)
        if unwritten and self._tasks:
            self._tasks.create_task(self._commit_after(unwritten, message, peer))
        else:
            self._committed(message, peer)

    async def _commit_after(self, unwritten: Sequence[asyncio.Task[None]], message: Commit, peer: str) -> None:
        await asyncio.wait(unwritten)
        with self._deciding():
            self._committed(message, peer)

    def _committed(self, message: Commit, peer: str) -> None:
        step, training = message.step, self._scheduler.training
        is_new = step > training.committed_step or training.has_computed(step, peer)
        if is_new and self._scheduler.nodes.get(peer):  # A resumed trainer repeats the commit that it starts from.
            folder = step_folder(self._directory.checkpoints, step + 1)
            with contextlib.suppress(OSError):  # The trainer keeps its checkpoints elsewhere.
                sha256 = file_entry(folder / MANIFEST).sha256
                self._record(Written(f"checkpoints/{folder.name}/{MANIFEST}", sha256))
        self._decide(message, peer)

    # ── out ─────────────────────────────────────────────────────────────────────────────────

    def _flush(self) -> None:
        if self._spools_known != self._scheduler.spools.revision:
            self._spools_known = self._scheduler.spools.revision
            self._spools.update(self._scheduler.spools.told_to(""))
        outbox, records, events = self._scheduler.out.drain()
        if self._traces:
            self._traces.observe(outbox, records)
        for event in events:
            # The coming and going of commands such as `asyncrl status` is for the ledger alone.
            if not (event.kind.startswith("node.") and event.fields.get("role") == "supervisor"):
                self._files.event(event.kind, **event.fields)
            records += _node_record(event)
            if event.kind in ("node.left", "node.lost"):
                self._operators.departed(event)
        self._unwritten.extend(records)
        self._keep_answers()
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
        self._ending.nodes_changed()


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
