"""
`asyncrl run`: runs every role as a child process, with a link to the broker that reports progress.

    broker ─ address ─▶ rollouts, reward, trainer ─▶ ... ─▶ Finished ─▶ all processes leave ─▶ summary

A process that dies is restarted within a budget, and the broker records the cause as an event. The broker restarts from
its ledger at its old address, and the trainer from its newest checkpoint. A failure that a restart would repeat ends
the run: a mistake in the configuration, damaged files, or a failure of the run reported by the broker. A rollout or
reward node that an operator drained is not restarted; one that a signal ended is. A tracker that exhausts its budget
ends, and the run continues.
"""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from asyncrl.broker.ledger.reader import read_ledger_meta
from asyncrl.config.config import Config
from asyncrl.episodes.containers import reap_run
from asyncrl.errors import ConfigError, LedgerError, LinkError, RunFailed
from asyncrl.messages.session import Beat
from asyncrl.messages.supervisor import (
    Evaluated,
    Exited,
    Failures,
    Finished,
    Interrupt,
    Notice,
    Paused,
    Progress,
    Returned,
    SettingsChanged,
)
from asyncrl.messages.words import Role
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.states import INTERRUPTED
from asyncrl.records.trackers import label
from asyncrl.runtime.machine import Devices
from asyncrl.runtime.metrics_server import MetricsOptions
from asyncrl.runtime.screen import Screen
from asyncrl.runtime.sessions import join_steadily
from asyncrl.wire.handshake import identity, leave, send_beats
from asyncrl.wire.link import Link
from asyncrl.wire.run_address import KEY_VARIABLE, SECRET_VARIABLE, locate
from asyncrl.workers.child import (
    FINAL_CODES,
    LATE_S,
    AfterExit,
    Child,
    Exit,
    RestartBudget,
    keep_alive,
    module_command,
    why,
)
from asyncrl.workers.forked import Importer

# ── children ──────────────────────────────────────────────────────────────────────────────────
# The child processes of a run: one per role, one per tracker, and at the end one that writes the report.

REPORT_S = 120.0
"""Most seconds that the report may take."""
LIBRARY_SETTINGS = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
"""Variables that libraries read when they are imported."""
OF_MODELS = (
    "asyncrl.runtime.trainer",
    "asyncrl.runtime.rollout",
    "asyncrl.rollout.engines.transformers.engine",
)
"""Modules of trainers, and of rollouts with the built-in engine."""


@contextmanager
def importing(config: Config, trainer: Devices | None, shares: Sequence[Devices]) -> Iterator[Importer | None]:
    """
    Import what a run's trainer and rollouts need, in a process that is to become each of them, until the block ends.

    None if each imports for itself: an engine that starts processes of its own, and those with devices, which libraries
    look for while they are imported.
    """
    kinds = {devices.kind for devices in (trainer, *shares) if devices}
    if sys.platform != "linux" or config.rollout.engine != "transformers" or kinds != {"cpu"}:
        yield None
        return
    with closing(
        Importer(OF_MODELS, LIBRARY_SETTINGS | shares[0].environment() | {"OMP_NUM_THREADS": "1"})
    ) as importer:
        yield importer


def role_process(
    role: Role, name: str, config: Config, log: Path | None, *options: str, environment: dict[str, str] | None = None
) -> Child:
    """
    The child process of one role; not started.

    ``log`` is the file for its output; None uses the standard error of this process. ``options`` go to `asyncrl-node`;
    ``environment`` has further variables, such as those that select its devices.
    """
    command = module_command("asyncrl.cli.node", "--role", role, "--name", name, *options)
    threads = {"rollout": config.rollout.threads, "trainer": config.trainer.threads}.get(role, 1)
    # OpenMP reads the number of threads when it is loaded, too early to set it from Python code.
    return Child(name, command, log, LIBRARY_SETTINGS | {"OMP_NUM_THREADS": str(threads)} | (environment or {}))


def tracker_process(name: str, directory: RunDirectory) -> Child:
    """Child process that runs `asyncrl track` for one tracker; not started."""
    command = module_command("asyncrl", "track", str(directory.path), name)
    child = f"tracker-{label(name)}"
    return Child(child, command, directory.logs / f"{child}.log", {"OMP_NUM_THREADS": "1"})


def write_report(directory: RunDirectory) -> str:
    """Write the report of a run that is over, in a process of its own; returns why there is none, or an empty text."""
    command = module_command("asyncrl", "report", str(directory.path))
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=REPORT_S, check=True)
    except subprocess.CalledProcessError as failed:
        return why(failed.stderr) or f"exit code {failed.returncode}"
    except (OSError, subprocess.TimeoutExpired) as failed:
        return str(failed)
    return ""


async def keep_tracking(
    child: Child, config: Config, *, exited: Callable[[Exit], Awaitable[None]], is_over: Callable[[], bool]
) -> None:
    """Start a tracker process, and restart it whenever it dies, within the restart budget of every process."""

    async def after_exit(code: int) -> AfterExit:
        if code == 0 or is_over():
            return "leave"
        return "end" if code in FINAL_CODES else "restart"

    settings = config.supervisor
    try:
        await child.start()
        budget = RestartBudget(settings.max_restarts, settings.window_s)
        await keep_alive(child, budget, after_exit=after_exit, exited=exited, is_over=is_over)
    except RunFailed as failure:  # Its log cannot be opened.
        await exited(Exit(child.name, RunFailed.exit_code, str(failure), restarting=False))


# ── startup ───────────────────────────────────────────────────────────────────────────────────
# Describes what a run waits for before its first step: loading a model may take minutes without any output.

FIRST_S = 5.0
"""Seconds until the first message about what the run waits for; each following one comes after twice the time."""
NAMED = 3
"""Number of nodes listed by name; further ones are counted."""
START_EVENTS = ("run.started", "run.resumed")


def awaited(nodes: Sequence[str], events: Iterable[dict[str, Any]]) -> str:
    """
    Describe what the first step waits for, such as "trainer-0 to start, rollout-0 and rollout-1 to load the model".

    Empty once rollouts have weights: from there on the broker tells what a long silence is about.
    ``nodes`` are all nodes that were started; only rollouts and trainers load a model. ``events`` before the latest
    start of the run are ignored.
    """
    joined, ready, are_weights_live = _seen(events)
    to_start = [node for node in nodes if node not in joined]
    to_load = [node for node in nodes if joined.get(node) in ("rollout", "trainer") and node not in ready]
    waits = [f"{_named(to_start)} to start"] if to_start else []
    waits += [f"{_named(to_load)} to load the model"] if to_load else []
    return ", ".join(waits) or ("" if are_weights_live else "the rollouts to receive the weights")


def _seen(events: Iterable[dict[str, Any]]) -> tuple[dict[str, str], set[str], bool]:
    """Role of each joined node, names of the ready ones, and True if rollouts have received weights."""
    joined: dict[str, str] = {}
    ready: set[str] = set()
    are_weights_live = False
    for event in events:
        kind, node = event["event"], event.get("node", "")
        if kind in START_EVENTS:
            joined, ready, are_weights_live = {}, set(), False
        elif kind == "node.joined":
            joined[node] = event["role"]
            ready.discard(node)
        elif kind == "node.ready":
            ready.add(node)
        elif kind in ("node.left", "node.lost"):
            joined.pop(node, None)
        elif kind == "version.live":
            are_weights_live = True
    return joined, ready, are_weights_live


def _named(nodes: Sequence[str]) -> str:
    if len(nodes) > NAMED:
        return f"{', '.join(nodes[:NAMED])} and {len(nodes) - NAMED} more"
    return " and ".join(filter(None, [", ".join(nodes[:-1]), nodes[-1]]))


# ── supervisor ────────────────────────────────────────────────────────────────────────────────

START_S = 60.0
"""Seconds for the broker to open its files and write its address."""
LEAVE_S = 15.0
"""Seconds for the child processes to leave once the run is over."""
NODES_LEAVE_S = 5.0
"""Seconds for the nodes to exit after the broker: they have left the run by then, but vLLM takes seconds to stop."""
FINISHED_S = 2.0
"""Seconds for the broker to send `Finished`, after a node has left or cannot be restarted."""
OWN_SECRET = {KEY_VARIABLE: "", SECRET_VARIABLE: ""}
"""Environment of a run on one machine, whose nodes have its secret, whatever key somebody has for other runs."""
INTERRUPT_S = 160.0
"""Seconds for the broker to end an interrupted run: longer than it gives its nodes."""
NODE = "supervisor-0"
BROKER = "broker-0"
CAN_BE_DRAINED = ("rollout", "reward")
"""Roles that exit with 0 when `asyncrl drain` has made them leave."""


class RunSupervisor:
    """
    One run on one machine, with the devices of the trainer (None: the CPU) and the ``shares`` of the rollouts.

    The broker serves its metrics as ``metrics`` says, and every further process at the next port. It sends spans if the
    run ``is_traced``. Its trainer and rollouts are first started by ``importer``, if there is one.
    """

    def __init__(
        self,
        config: Config,
        directory: RunDirectory,
        screen: Screen,
        trainer: Devices | None,
        shares: list[Devices],
        *,
        metrics: MetricsOptions | None = None,
        is_traced: bool = False,
        importer: Importer | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._config = config
        self._directory = directory
        self._screen = screen
        self._trainer = trainer
        self._shares = shares
        self._metrics = metrics
        self._is_traced = is_traced
        self._importer = importer
        self._sleep = sleep
        self._children: list[Child] = []
        self._trackers: list[Child] = []
        self._link: Link | None = None
        self._unsent: list[Exited | Interrupt] = []
        """Messages for the next link: there was none yet, or they are about the broker itself."""
        self._ended: asyncio.Future[str]
        """Cause of the failure; empty if the run is complete."""
        self._has_begun = False
        """True after the first step or evaluation."""
        self._is_config_error = False
        """True if a child exited because of a mistake in the configuration."""
        self._gives_up = False
        """True after a function of the caller has failed, and the broker was told to end the run."""
        self._leaving = False
        self._tasks: asyncio.TaskGroup
        self._background: list[asyncio.Task[None]] = []

    async def run(self, stopping: asyncio.Event) -> None:
        """
        Run to the end.

        Raises `RunFailed` with the cause of an early end, `ConfigError` if that is a mistake in the configuration, and
        `LinkError` if the broker started and did not answer.
        """
        self._ended = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                cause = await self._run(stopping)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        if cause:
            raise (ConfigError if self._is_config_error else RunFailed)(cause)

    async def _run(self, stopping: asyncio.Event) -> str:
        self._spawn(self._interrupt(stopping))
        if self._importer:
            self._spawn(self._importer.listen())
        try:
            if not await self._start_broker():
                return ""
            self._spawn(self._attend())
            self._start_nodes()
            self._start_trackers()
            self._spawn(self._report_waiting())
            return await self._ended
        finally:
            await self._end_children()
            await self._end_containers()
            for task in self._background:
                task.cancel()

    # ── start ───────────────────────────────────────────────────────────────────────────────

    async def _start_broker(self) -> bool:
        """Start the broker, and wait until nodes can connect. False if the run was complete already."""
        files = ("--config", str(self._directory.config), "--run-dir", str(self._directory.path))
        traces = ["--traces"] if self._is_traced else []
        broker = self._start("broker", BROKER, *files, *traces)
        deadline = time.monotonic() + START_S
        while not self._directory.address.exists():
            if self._ended.done() and not self._ended.result():
                return False
            if self._ended.done():
                raise (ConfigError if self._is_config_error else RunFailed)(self._ended.result())
            if time.monotonic() > deadline:
                raise RunFailed(f"the broker did not start within {START_S:g} s; see {broker.log}")
            await self._sleep(0.02)
        return True

    def _start_nodes(self) -> None:
        to_broker = ("--run-dir", str(self._directory.path))
        devices_of_trainer = self._trainer.environment() if self._trainer else None
        self._start("trainer", "trainer-0", *to_broker, environment=devices_of_trainer)
        self._start("reward", "reward-0", *to_broker)
        for i, devices in enumerate(self._shares):
            self._start("rollout", f"rollout-{i}", *to_broker, environment=devices.environment())

    def _start_trackers(self) -> None:
        self._trackers = [tracker_process(name, self._directory) for name in self._config.trackers.use]
        self._children += self._trackers
        for child in self._trackers:
            self._spawn(keep_tracking(child, self._config, exited=self._tracker_exited, is_over=self._is_over))

    def _start(self, role: Role, name: str, *options: str, environment: dict[str, str] | None = None) -> Child:
        log = self._directory.logs / f"{name}.log"
        metrics = self._metrics.of_child(len(self._children)).as_options() if self._metrics else []
        variables = OWN_SECRET | (environment or {})
        child = role_process(role, name, self._config, log, *options, *metrics, environment=variables)
        self._children.append(child)
        self._spawn(self._watch(role, child))
        return child

    async def _end_containers(self) -> None:
        """Remove the containers of the run that killed rollouts have left, and its snapshots."""
        settings = self._config.environment.container
        if not settings.is_set:
            return
        try:
            run_id = read_ledger_meta(self._directory.ledger).run_id
        except LedgerError:  # there is none: nothing has begun
            return
        for reason in await reap_run(settings, run_id):
            self._screen.say(f"of the run's containers something is left: {reason}")

    # ── watch ───────────────────────────────────────────────────────────────────────────────

    async def _watch(self, role: Role, child: Child) -> None:
        """Start a process, and restart it whenever it dies, within the budget; one that is restarted imports itself."""
        settings = self._config.supervisor
        await child.start(self._importer.fork if self._importer and role in ("trainer", "rollout") else None)
        if self._is_over():  # Nobody else ends what was not started yet.
            await child.end(drain_s=LATE_S)

        async def after_exit(code: int) -> AfterExit:
            if role == "broker" and code == 0 and (summary := self._directory.read_summary()):
                self._end(summary.cause)
            if code == 0:  # It left on purpose, most often because the run is over; `Finished` then arrives soon.
                await self._sleep(FINISHED_S)
            if self._is_over():
                return "leave"
            if code == 0 and role in CAN_BE_DRAINED:
                self._screen.departed(child.name)
                return "leave"
            self._is_config_error = self._is_config_error or code == ConfigError.exit_code
            # A broker that exits before it has written its address would do so again; one that was killed would not.
            may_succeed = code < 0 or self._directory.address.exists()
            return "restart" if may_succeed and code not in FINAL_CODES else "end"

        budget = RestartBudget(settings.max_restarts, settings.window_s)
        await keep_alive(
            child, budget, after_exit=after_exit, exited=self._exited, is_over=self._is_over, sleep=self._sleep
        )

    async def _exited(self, left: Exit) -> None:
        message = Exited(left.name, left.cause, restarting=left.restarting)
        if left.name == BROKER:
            self._unsent.append(message)
        else:
            await self._send(message)
        self._screen.exited(left.name, left.cause, restarting=left.restarting)
        if not left.restarting:
            # The broker ends the run at the other nodes and writes the summary, unless it is the one that died.
            await self._sleep(0 if left.name == BROKER else FINISHED_S)
            self._end(f"{left.name} {left.cause}")

    async def _tracker_exited(self, left: Exit) -> None:
        await self._send(Exited(left.name, left.cause, restarting=left.restarting, is_needed=False))
        self._screen.exited(left.name, left.cause, restarting=left.restarting)

    async def _attend(self) -> None:
        """Listen to the broker until `Finished`; reconnect after a restart of the broker."""
        while not self._is_over():
            run = locate(str(self._directory.path), environment=OWN_SECRET)
            _, link, welcome = await join_steadily(run, identity("supervisor", NODE), START_S)
            self._link = link
            while self._unsent:
                await link.send(self._unsent.pop(0))
            beats = asyncio.create_task(send_beats(link, welcome.beat_s, Beat))
            try:
                with contextlib.suppress(LinkError):  # The broker died; `_watch` reports that.
                    await self._listen(link)
            finally:
                beats.cancel()
                await asyncio.gather(beats, return_exceptions=True)

    async def _listen(self, link: Link) -> None:
        async for message in link:
            match message:
                case Progress():
                    self._has_begun = True
                    self._screen.step(message)
                case Failures(counts=counts, attempts=attempts):
                    self._screen.failures(counts, attempts)
                case Paused():
                    self._screen.paused(message)
                case SettingsChanged():
                    self._screen.changed(message)
                case Notice(sentence=sentence):
                    self._screen.say(sentence)
                case Returned():
                    self._screen.returned(message)
                case Evaluated():
                    self._has_begun = True
                    self._screen.evaluated(message)
                case Finished(cause=cause):
                    self._end(cause)
                    return
            if self._screen.failure and not self._gives_up:
                self._gives_up = True
                self._screen.say(f"{self._screen.failure}: saving a checkpoint")
                await self._send(Interrupt(str(self._screen.failure)))

    async def _report_waiting(self) -> None:
        """Print what the first step waits for, at doubling intervals."""
        nodes = [child.name for child in self._children if child.name != BROKER and child not in self._trackers]
        waited_s, pause_s = 0.0, FIRST_S
        while True:
            await self._sleep(pause_s)
            if self._has_begun or self._is_over():
                return
            waited_s += pause_s
            pause_s = waited_s
            with contextlib.suppress(LedgerError):  # Damaged events: the broker fails with the same error.
                if not (what := awaited(nodes, self._directory.read_events())):
                    return
                self._screen.waiting(what, waited_s)

    async def _interrupt(self, stopping: asyncio.Event) -> None:
        """On the first signal let the broker end the run; on the second, or without an answer in time, end it here."""
        await stopping.wait()
        stopping.clear()
        what = "saving a checkpoint" if self._has_begun else "processes that still load end when they have loaded"
        self._screen.say(f"interrupted: {what}; once more to end at once")
        await self._send(Interrupt())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(INTERRUPT_S if self._link else FINISHED_S):
                await stopping.wait()
        self._end(INTERRUPTED)

    async def _send(self, message: Exited | Interrupt) -> None:
        if self._link is None:
            self._unsent.append(message)
        else:
            with contextlib.suppress(LinkError):
                await self._link.send(message)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._background.append(self._tasks.create_task(coroutine))

    def _is_over(self) -> bool:
        return self._leaving or self._ended.done()

    def _end(self, cause: str) -> None:
        if not self._ended.done():
            self._ended.set_result(cause)

    # ── end ─────────────────────────────────────────────────────────────────────────────────

    async def _end_children(self) -> None:
        """Let the children leave if they know that the run is over; then end those that are still there."""
        self._leaving = True
        know_the_end = self._ended.done() and self._link is not None
        if self._link is not None:
            await leave(self._link, "done")
        if know_the_end:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await asyncio.gather(self._nodes_leave(), *(child.wait() for child in self._trackers if child.pid))
        for child in self._trackers:
            if child.pid:
                self._screen.say(f"{child.name} has not finished; asyncrl track continues where it stopped")
        await asyncio.gather(*(child.end(drain_s=2.0) for child in self._children))

    async def _nodes_leave(self) -> None:
        """Wait for the broker, which waits for its nodes, then briefly for nodes that are still loading."""
        broker, *others = (child for child in self._children if child not in self._trackers)
        if broker.pid:
            await broker.wait()
        if leaving := [asyncio.create_task(child.wait()) for child in others if child.pid]:
            await asyncio.wait(leaving, timeout=NODES_LEAVE_S)
