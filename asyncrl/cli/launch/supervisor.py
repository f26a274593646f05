"""
`asyncrl run`: every role as a child process of this one, and one link to the broker to see how it goes.

    broker ─ address ─▶ rollouts, reward, trainer ─▶ ... ─▶ Finished ─▶ everybody leaves ─▶ summary

A process that dies is started again, within a budget; the broker is told why, so that the event log names the cause.
The broker starts again from its ledger, where its nodes look for it, and the trainer from its newest checkpoint. What
would only end the same way again ends the run: a mistake in the configuration, damaged files, a broker that says the
run has failed.
A rollout or reward node that was told to leave, and did, stays away. A tracker that dies once too often stays away too,
and the run goes on.
"""

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from typing import Any

from asyncrl.actor.link import Link
from asyncrl.actor.supervise import FINAL_CODES, Child, Exit, RestartBudget, Verdict, keep_alive
from asyncrl.cli.launch.children import role_process
from asyncrl.cli.launch.screen import Screen
from asyncrl.cli.launch.startup import FIRST_S, awaited
from asyncrl.cli.launch.tracking import keep_tracking, tracker_process
from asyncrl.client.handshake import beat, identity, join, leave
from asyncrl.config.sections import Config
from asyncrl.errors import ConfigError, LedgerError, LinkError, RunFailed
from asyncrl.messages import Beat, Evaluated, Exited, Finished, Progress, Role
from asyncrl.node.machine.devices import Devices
from asyncrl.observe.run_directory import RunDirectory

START_S = 60.0
"""For the broker to open its files and say where it listens."""
LEAVE_S = 15.0
"""For children to leave once the run is over."""
PART_S = 5.0
"""For nodes to end once the broker has: they have said goodbye to it, and vLLM then takes seconds."""
LAST_WORDS_S = 2.0
"""For the broker to say how the run ended, after it was told that it cannot go on, or that a node has left."""
NODE = "supervisor-0"
BROKER = "broker-0"
LEAVE_FOR_GOOD = ("rollout", "reward")
"""Roles whose processes were told to leave, by SIGTERM or `asyncrl drain`, if they exit with 0."""


class Supervisor:
    """
    One run on one machine.

    Args:
        trainer: Devices of the trainer; None for the CPU.
        shares: Devices of each rollout.
    """

    def __init__(
        self,
        config: Config,
        directory: RunDirectory,
        screen: Screen,
        trainer: Devices | None,
        shares: list[Devices],
    ) -> None:
        self._config = config
        self._directory = directory
        self._screen = screen
        self._trainer = trainer
        self._shares = shares
        self._children: list[Child] = []
        self._trackers: list[Child] = []
        """Those of the children that are."""
        self._link: Link | None = None
        """To the broker, if it was met."""
        self._news: list[Exited] = []
        """What the broker could not hear: it was not there yet, or it is the one it is about."""
        self._ended: asyncio.Future[str]
        """The cause; empty if the run is complete."""
        self._has_begun = False
        """There was a step, or an evaluation."""
        self._is_mistake = False
        """Of the person who wrote the configuration."""
        self._leaving = False
        self._tasks: asyncio.TaskGroup
        self._background: list[asyncio.Task[None]] = []

    async def run(self, stopping: asyncio.Event) -> None:
        """
        Run to the end.

        Raises:
            RunFailed: It ended early; the message is the cause.
            ConfigError: It ended early because the configuration cannot work.
            LinkError: The broker started and did not answer.
        """
        self._ended = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                cause = await self._run(stopping)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        if cause:
            raise (ConfigError if self._is_mistake else RunFailed)(cause)

    async def _run(self, stopping: asyncio.Event) -> str:
        self._spawn(self._interrupt(stopping))
        try:
            address = await self._start_broker()
            self._spawn(self._attend(address))
            await self._start_nodes(address)
            self._start_trackers()
            self._spawn(self._tell_what_is_awaited())
            return await self._ended
        finally:
            await self._end_children()
            for task in self._background:
                task.cancel()

    # ── start ───────────────────────────────────────────────────────────────────────────────

    async def _start_broker(self) -> str:
        broker = self._child(
            "broker", BROKER, "--config", str(self._directory.config), "--run-dir", str(self._directory.path)
        )
        await self._start("broker", broker)
        deadline = time.monotonic() + START_S
        while not self._directory.address.exists():
            if self._ended.done():
                raise (ConfigError if self._is_mistake else RunFailed)(self._ended.result())
            if time.monotonic() > deadline:
                raise RunFailed(f"the broker did not start within {START_S:g} s; see {broker.log}")
            await asyncio.sleep(0.02)
        return self._directory.address.read_text().strip()

    async def _start_nodes(self, address: str) -> None:
        to_broker = ("--broker", address)
        its_devices = self._trainer.environment() if self._trainer else None
        await self._start("trainer", self._child("trainer", "trainer-0", *to_broker, devices=its_devices))
        await self._start("reward", self._child("reward", "reward-0", *to_broker))
        for i, devices in enumerate(self._shares):
            rollout = self._child("rollout", f"rollout-{i}", *to_broker, devices=devices.environment())
            await self._start("rollout", rollout)

    def _start_trackers(self) -> None:
        self._trackers = [tracker_process(name, self._directory) for name in self._config.trackers.use]
        self._children += self._trackers
        for child in self._trackers:
            self._spawn(keep_tracking(child, self._config, exited=self._tracker_exited, is_over=self._is_over))

    async def _start(self, role: Role, child: Child) -> None:
        await child.start()
        self._spawn(self._watch(role, child))

    def _child(self, role: Role, name: str, *options: str, devices: dict[str, str] | None = None) -> Child:
        log = self._directory.logs / f"{name}.log"
        child = role_process(role, name, self._config, log, *options, devices=devices)
        self._children.append(child)
        return child

    # ── watch ───────────────────────────────────────────────────────────────────────────────

    async def _watch(self, role: Role, child: Child) -> None:
        settings = self._config.supervisor

        async def judge(code: int) -> Verdict:
            if code == 0:  # It left on purpose: most often because the run is over, which we hear in a moment.
                await asyncio.sleep(LAST_WORDS_S)
            if self._is_over():
                return "leave"
            if code == 0 and role in LEAVE_FOR_GOOD:
                self._screen.left(child.name)
                return "leave"
            self._is_mistake = self._is_mistake or code == ConfigError.exit_code
            is_final = code in FINAL_CODES or not self._directory.address.exists()  # The broker never came so far.
            return "end" if is_final else "restart"

        budget = RestartBudget(settings.max_restarts, settings.window_s)
        await keep_alive(child, budget, judge=judge, exited=self._exited, is_over=self._is_over)

    async def _exited(self, left: Exit) -> None:
        news = Exited(left.name, left.cause, restarting=left.restarting)
        if left.name == BROKER:
            self._news.append(news)
        else:
            await self._tell(news)
        self._screen.exited(left.name, left.cause, restarting=left.restarting)
        if not left.restarting:
            # The broker says goodbye to the others and writes the summary, unless it is the one that died.
            await asyncio.sleep(0 if left.name == BROKER else LAST_WORDS_S)
            self._end(f"{left.name} {left.cause}")

    async def _tracker_exited(self, left: Exit) -> None:
        await self._tell(Exited(left.name, left.cause, restarting=left.restarting, is_needed=False))
        self._screen.exited(left.name, left.cause, restarting=left.restarting)

    async def _attend(self, address: str) -> None:
        """Hear the broker until it says how the run ended: also the one that takes the place of one that died."""
        while not self._is_over():
            link, welcome = await join(address, identity("supervisor", NODE), START_S)
            self._link = link
            while self._news:
                await link.send(self._news.pop(0))
            beats = asyncio.create_task(beat(link, welcome.beat_s, Beat))
            with contextlib.suppress(LinkError):  # The broker died: whoever watches its process says so.
                await self._listen(link)
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)

    async def _listen(self, link: Link) -> None:
        async for message in link:
            match message:
                case Progress():
                    self._has_begun = True
                    self._screen.step(message)
                case Evaluated():
                    self._has_begun = True
                    self._screen.evaluated(message)
                case Finished(cause=cause):
                    self._end(cause)
                    return

    async def _tell_what_is_awaited(self) -> None:
        """Until the first step, ever more rarely."""
        nodes = [child.name for child in self._children if child.name != BROKER and child not in self._trackers]
        waited_s, pause_s = 0.0, FIRST_S
        while True:
            await asyncio.sleep(pause_s)
            if self._has_begun or self._is_over():
                return
            waited_s += pause_s
            pause_s = waited_s
            with contextlib.suppress(LedgerError):  # The broker says so, and ends.
                self._screen.waiting(awaited(nodes, self._directory.read_events()), waited_s)

    async def _interrupt(self, stopping: asyncio.Event) -> None:
        await stopping.wait()
        await self._tell(Exited("the run", "was interrupted", restarting=False))
        await asyncio.sleep(LAST_WORDS_S)
        self._end("the run was interrupted")

    async def _tell(self, message: Exited) -> None:
        if self._link is None:
            self._news.append(message)
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
        """Those who were told to stop get time to leave; whoever has not left then is made to."""
        self._leaving = True
        told = self._ended.done() and self._link is not None
        if self._link is not None:
            await leave(self._link, "done")
        if told:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await asyncio.gather(self._nodes_leave(), *(child.wait() for child in self._trackers if child.pid))
        for child in self._trackers:
            if child.pid:
                self._screen.say(f"{child.name} has not finished; asyncrl track goes on where it stopped")
        await asyncio.gather(*(child.end(drain_s=2.0) for child in self._children))

    async def _nodes_leave(self) -> None:
        """The broker waits for all that it knows. Who is still loading then hears of no end: nobody waits for it."""
        broker, *others = (child for child in self._children if child not in self._trackers)
        if broker.pid:
            await broker.wait()
        if leaving := [asyncio.create_task(child.wait()) for child in others if child.pid]:
            await asyncio.wait(leaving, timeout=PART_S)
