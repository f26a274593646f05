"""
One schedule: all processes of a run on one virtual clock, with faults drawn from a seed.

    faults ──── faults stop ──── everything recovers ──── the run must be complete within `FINISH_S`
    └──────── the invariants are checked at every record, message and step ────────┘

A process that ends is restarted, as a supervisor does; a failed run (full disk) is resumed, as a person does.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

import structlog

from asyncrl import failpoints
from asyncrl.errors import LinkError, LinkRefused, RunFailed
from asyncrl.messages.spool import PutItem
from asyncrl.messages.words import Role
from asyncrl.reward import actor as reward_actor
from asyncrl.rollout import actor as rollout_actor
from asyncrl.rollout import generations as rollout_generations
from asyncrl.rollout import results as rollout_results
from asyncrl.runtime import broker as broker_process
from asyncrl.runtime import sessions
from asyncrl.trainer.checkpoints import writer
from asyncrl.trainer.checkpoints import writer as checkpoint_writer
from asyncrl.wire import handshake, session, zmq_hub, zmq_link
from asyncrl.wire.handshake import Identity
from tests.simulation.audits import audit_problems
from tests.simulation.broker_node import Directory, Prompts, run_broker
from tests.simulation.damage import Damage
from tests.simulation.disk import Disk
from tests.simulation.invariants import Invariants, Violation
from tests.simulation.nodes import run_reward, run_rollout, run_trainer
from tests.simulation.plan import Plan
from tests.simulation.trace import Trace
from tests.simulation.transfers import Transfers
from tests.simulation.virtual_time import PROCESS, Process, Stuck, VirtualLoop
from tests.simulation.wire import Network

FINISH_S = 200.0
"""Virtual seconds without faults within which a run must be complete."""
RESEND_S = 0.5
"""Replaces the rollout's 5 s, for more repeats in less time."""
REPEAT_TICKS = 3
"""Replaces a session's 8 ticks, so that lost frames are repeated sooner."""
WATCH_S = 0.5
"""Seconds between two checks of unsettled results."""
LEGITIMATE = (
    *("could not be published in", "could not be stored at the spool in"),
    *("the disk is full", "was told to stop"),
)
"""Legitimate causes of a failed run, from which a person can resume."""

Main = Callable[["World", Identity, asyncio.Event], Coroutine[Any, Any, None]]


class World:
    """
    All objects of one schedule.

    Args:
        is_traced: Print the events of the schedule.
    """

    def __init__(self, plan: Plan, *, is_traced: bool = False) -> None:
        self.plan = plan
        self.dice = Random(f"world {plan.seed}")
        self.loop = VirtualLoop(self.dice)
        self.loop.work_s = lambda function: {"train": plan.pace.train_s, "_write": plan.pace.sync_s}.get(
            getattr(function, "__name__", ""), 0.0
        )
        self.trace = Trace(self.loop.time, is_on=is_traced)
        self.prompts = Prompts()
        self.damage = Damage(plan)
        self.invariants = Invariants(
            plan.config,
            self.prompts.at,
            lambda: self.checkpoints.highest,
            self.damage.is_damaged,
            self._is_on_devices,
            self._broken,
        )
        self.disk = Disk(self.dice, self.invariants.committed)
        self.checkpoints = self.disk.checkpoints
        self.network = Network(self.loop, self.dice, plan.weather, self.trace)
        self.transfers = Transfers(self.dice, plan.pace.transfer_s)
        self.directory = Directory(self.disk)
        self.processes: dict[str, Process] = {}
        self.stopping: dict[str, asyncio.Event] = {}
        self.waiting: dict[str, Callable[[], tuple[str, list[PutItem]]]] = {}
        """Incarnation and unsettled puts of each rollout."""
        self.on_devices: dict[str, tuple[str, Callable[[], bool]]] = {}
        """Incarnation of each rollout and trainer, and whether it has memory on the shared devices."""
        self.was_damaged = False
        """True once a checkpoint was damaged."""
        self.calm_since_s = 0.0
        """Virtual time of the last fault."""
        self.calls: Iterator[int] = count(1)
        """Numbers of the calls of the group function."""
        self._violations: list[str] = []
        self._incarnations = count(1)
        self._starts: Counter[str] = Counter()
        """Processes that were started, by name."""
        self._ended: asyncio.Future[None]
        self._supervision: list[asyncio.Task[None]] = []

    # ── one schedule ────────────────────────────────────────────────────────────────────────

    def run(self, faults: Callable[["World"], Coroutine[Any, Any, None]]) -> None:
        """
        Run the schedule.

        Raises:
            Violation: An invariant was violated.
        """
        self._ended = self.loop.create_future()
        self.loop.set_exception_handler(self._on_stray_exception)
        with stand_ins(self):
            try:
                self.loop.run_until_complete(self._schedule(faults))
            except Stuck as stuck:
                raise Violation(str(stuck)) from None
            finally:
                self._finish_tasks()

    async def _schedule(self, faults: Callable[["World"], Coroutine[Any, Any, None]]) -> None:
        for name, main in self._mains():
            self._supervision.append(self.loop.create_task(self._supervise(name, main)))
        faulting = self.loop.create_task(faults(self))
        watching = self.loop.create_task(self._watch_unsettled())
        self._supervision += [faulting, watching]
        try:
            async with asyncio.timeout(self.plan.faults_s + FINISH_S):
                await self._ended
        except TimeoutError:
            self._broken(f"the run is not complete {FINISH_S:g} s after the last fault")
        if not self._violations:
            newest = self.checkpoints.newest()
            self.invariants.ended(self.disk.ledger.records, newest.trained if newest else ())
            lines = self.directory.read_metrics()
            for problem in audit_problems(
                self.plan.config, self.disk, lines, was_damaged=self.was_damaged, damage=self.damage
            ):
                self._broken(f"the audit says: {problem}")
        if self._violations:
            raise Violation(self._violations[0])

    def _mains(self) -> list[tuple[str, Main]]:
        return [
            ("broker", run_broker),
            ("trainer", run_trainer),
            *((f"rollout-{i}", run_rollout) for i in range(self.plan.num_rollouts)),
            *((f"reward-{i}", run_reward) for i in range(self.plan.num_rewards)),
        ]

    # ── processes ───────────────────────────────────────────────────────────────────────────

    def identity(self, role: Role, node: str) -> Identity:
        """Identity of a new session, which tells its process, as real ones do."""
        return Identity(role, node, f"{next(self._incarnations)}-{self._starts[node]}")

    async def _supervise(self, name: str, main: Main) -> None:
        role: Any = name.partition("-")[0]
        while True:
            self.stopping[name] = asyncio.Event()
            self._starts[name] += 1
            process = self.processes[name] = Process(self.loop, name)
            process.start(main(self, self.identity(role, name), self.stopping[name]))
            self.trace.say("starts", name)
            self.disturbed()
            await asyncio.wait([process.task])
            was_alive, process.is_alive = process.is_alive, False
            self.waiting.pop(name, None)
            self.on_devices.pop(name, None)
            if was_alive and self._check_end(name, process.task):
                return
            self.disturbed()
            await asyncio.sleep(self.dice.uniform(0.1, 1.0))

    def _check_end(self, name: str, task: "asyncio.Task[None]") -> bool:
        """Report an illegitimate end of a process. Returns True if the run is complete."""
        error = task.exception()
        self.trace.say(f"ends: {error!r}" if error else "ends", name)
        match error:
            case None if name == "broker":
                self._end()
                return True
            case LinkRefused() if "this run is over" not in str(error):
                self._broken(f"{name} was refused: {error}")
            case RunFailed() if not any(cause in str(error) for cause in LEGITIMATE):
                self._broken(f"the run failed: {error}")
            case None | RunFailed() | LinkError():
                pass
            case _:
                self._broken(f"{name} ended by {error!r}")
        return False

    def _is_on_devices(self, name: str, incarnation: str) -> bool:
        known, is_there = self.on_devices.get(name, ("", bool))
        return known == incarnation and is_there()

    def disturbed(self) -> None:
        """Record the current time as that of the last fault."""
        self.calm_since_s = self.loop.time()

    async def _watch_unsettled(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            if self.network.weather.loss or any(process.parked is not None for process in self.processes.values()):
                self.disturbed()
            for incarnation, items in [of_rollout() for of_rollout in self.waiting.values()]:
                self.invariants.unsettled(incarnation, items, self.loop.time(), self.calm_since_s)

    # ── the end ─────────────────────────────────────────────────────────────────────────────

    def _broken(self, violation: str) -> None:
        self.trace.say(f"BROKEN: {violation}")
        self._violations.append(violation)
        self._end()

    def _on_stray_exception(self, _loop: object, context: dict[str, Any]) -> None:
        """Report an uncaught exception of a callback; leftovers of killed processes are ignored."""
        if "handle" in context:
            self._broken(f"{context['message']}: {context.get('exception')!r}")

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def _finish_tasks(self) -> None:
        """Finish every coroutine, so that none is left to the garbage collector."""
        for task in self._supervision:
            task.cancel()
        for process in self.processes.values():
            process.kill()
        while tasks := self.loop.unfinished:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
            for task in self.loop.unfinished:
                task.cancel()
        self.loop.close()


# ── stand-ins ───────────────────────────────────────────────────────────────────────────────


async def unknown_cause(_address: str) -> str:
    """Cause of a broker's silence; a real look would need a network."""
    return "it does not answer"


@contextlib.contextmanager
def stand_ins(world: World) -> Iterator[None]:
    """Replace the sockets, files, threads and clocks of the tested code by those of ``world``."""
    in_place_of: list[tuple[Any, str, Any]] = [
        (zmq_link, "new_socket", world.network.socket),
        (zmq_link, "FdSocket", world.network.attach),
        (zmq_hub, "new_socket", world.network.socket),
        (zmq_hub, "FdSocket", world.network.attach),
        (handshake, "why_silent", unknown_cause),
        (sessions, "identity", world.identity),
        (broker_process, "identity", world.identity),
        (checkpoint_writer, "checkpoint", world.checkpoints),
        (writer, "checkpoint", world.checkpoints),
        (session, "REPEAT_TICKS", REPEAT_TICKS),
        (rollout_actor, "RESEND_S", RESEND_S),
        (sessions, "machine_use", lambda: None),
        (sessions, "memory_stall", lambda: world.plan.pace.memory_stall),
        (sessions, "Cores", lambda: SimpleNamespace(busy=lambda: world.plan.pace.cores_busy)),
        (rollout_results, "RESEND_S", RESEND_S),
        (rollout_generations, "to_put_item", world.damage.put_item),
        (reward_actor, "problem_of", world.damage.problem_of),
        (failpoints, "_armed", {}),
        (failpoints, "os", SimpleNamespace(getpid=int, kill=lambda _pid, _signal: die(world))),
    ]
    if world.plan.failpoint:
        place, number = world.plan.failpoint
        armed: Any = {place: (number, Marker())}
        in_place_of.append((failpoints, "_armed", armed))
    before = structlog.get_config()
    with contextlib.ExitStack() as stack:
        for module, name, stand_in in in_place_of:
            stack.enter_context(mock.patch.object(module, name, stand_in))
        stack.callback(structlog.configure, **before)
        if world.trace.is_on:
            structlog.configure(processors=[world.trace.log], logger_factory=structlog.ReturnLoggerFactory())
        else:
            quiet = structlog.make_filtering_bound_logger(logging.CRITICAL)
            structlog.configure(wrapper_class=quiet, logger_factory=structlog.ReturnLoggerFactory())
        yield


class Marker:
    """In place of the file of a failpoint, without a disk."""

    def __init__(self) -> None:
        self._exists = False

    def touch(self, *, exist_ok: bool) -> None:
        """Raises FileExistsError from the second time on."""
        if self._exists and not exist_ok:
            raise FileExistsError
        self._exists = True


def die(world: World) -> None:
    """Kill the running process at a failpoint."""
    world.trace.say("is killed at a failpoint")
    world.disturbed()
    PROCESS.get().kill()
