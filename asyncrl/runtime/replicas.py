"""
`asyncrl-node --role rollout --replicas N`: several rollouts on one machine, each a child process with its own devices.

    broker ─ configuration ─▶ devices, split up ─▶ NAME-0, NAME-1, ... ─▶ all have left, or the first failure

A replica that dies is restarted within the run's budget (`supervisor.max_restarts`). Once the budget is spent, that
replica ends and the others continue. A mistake in the configuration, which all replicas share, ends all of them.
"""

import asyncio
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from asyncrl.config.config import Config, from_json
from asyncrl.errors import AsyncrlError, ConfigError, LedgerError, LinkError, RunFailed, ToldToLeave
from asyncrl.log import get_logger
from asyncrl.messages.words import WeightsVia
from asyncrl.records.formatting import counted
from asyncrl.runtime.machine import Devices, chosen, find, needed, share
from asyncrl.runtime.metrics_server import MetricsOptions
from asyncrl.runtime.service_manager import ADDRESS_VARIABLE, STATE, service_manager
from asyncrl.runtime.sessions import join_steadily, unless_told
from asyncrl.runtime.supervisor import role_process
from asyncrl.wire.handshake import identity, leave, only_asking
from asyncrl.wire.run_address import RunAddress
from asyncrl.workers.child import FINAL_CODES, LATE_S, AfterExit, Child, Exit, RestartBudget, keep_alive

# ── child states ──────────────────────────────────────────────────────────────────────────────
# States of child processes, which report to this process as to their service manager.
#
#     child ─ X_STATE=ready ─▶ socket ─ the kernel names the sender's process id ─▶ `ChildStates`

REPORT_BYTES = 4096
CREDENTIALS = struct.Struct("3i")
"""Process, user and group of a sender: ``struct ucred`` of unix(7)."""


class ChildStates:
    """The last state that each child reported. Use `received` to hear from them."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind("")  # The kernel chooses a free name, which needs no file.
        self._states: dict[int, str] = {}

    def environment(self) -> dict[str, str]:
        """Variables with which a child reports here."""
        return {ADDRESS_VARIABLE: f"@{self._socket.getsockname()[1:].decode()}"}

    def is_ready(self, pid: int | None) -> bool:
        """True if the process ``pid`` does its work, as it last said."""
        return self._states.get(pid or 0) == "ready"

    @contextmanager
    def received(self, changed: Callable[[], None]) -> Iterator[None]:
        """Take reports, and call ``changed`` after each, until the block ends; then close the socket."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._socket, self._take, changed)
        try:
            yield
        finally:
            loop.remove_reader(self._socket)
            self._socket.close()

    def _take(self, changed: Callable[[], None]) -> None:
        text, (*_, (_, _, sender)), _, _ = self._socket.recvmsg(REPORT_BYTES, socket.CMSG_SPACE(CREDENTIALS.size))
        pid, uid, _ = CREDENTIALS.unpack(sender)
        fields = dict(line.partition("=")[::2] for line in text.decode(errors="replace").splitlines())
        if uid == os.getuid() and STATE in fields:  # Any user of the machine reaches the socket.
            self._states[pid] = fields[STATE]
            changed()


# ── replicas ──────────────────────────────────────────────────────────────────────────────────

log = get_logger()

CAUSES: dict[int, type[AsyncrlError]] = {kind.exit_code: kind for kind in (ConfigError, LedgerError, LinkError)}
"""Exit code of a replica to the error to raise."""


async def run_replicas(
    run: RunAddress,
    name: str,
    *,
    count: int | None,
    only: list[str] | None,
    wait_s: float,
    stopping: asyncio.Event,
    weights: WeightsVia = "collective",
    may_fetch: bool = True,
    metrics: MetricsOptions | None = None,
) -> None:
    """
    Run rollouts until all have left: the run is over, or ``stopping`` was set and they are drained.

    ``count`` is None for as many as there are devices for, ``only`` for all devices. Raises `ConfigError` if there are
    too few devices, `LinkError` if the broker does not answer within ``wait_s`` seconds, and the first failure after
    which a replica was not restarted.
    """
    asking = join_steadily(run, identity("rollout", name), wait_s, only_asking)
    _, link, welcome = await unless_told(stopping, asking)
    await leave(link, "done")
    config = from_json(welcome.config)
    found = find(config.rollout.wanted_device, os.environ)
    if only is not None:
        found = chosen(found, only)
    shares = share(found, config.rollout, count, "--replicas")
    log.info("replicas.starting", **_plan(found, shares, config))
    fetch = "auto" if may_fetch else "never"
    options = ("--broker", run.broker, "--wait", f"{wait_s:g}", "--weights", weights, "--fetch", fetch)
    children, states = [], ChildStates()
    for i, devices in enumerate(shares):
        environment = devices.environment() | run.environment() | states.environment()
        own = metrics.of_child(i + 1).as_options() if metrics else []
        child = role_process("rollout", f"{name}-{i}", config, None, *options, *own, environment=environment)
        children.append(child)
    await Replicas(children, states, config, stopping).run()


class Replicas:
    """
    Keeps the child processes running, and drains all of them once ``stopping`` is set.

    This process is ready while one of them is, by the reports that ``states`` has of them.
    """

    def __init__(self, children: list[Child], states: ChildStates, config: Config, stopping: asyncio.Event) -> None:
        self._children = children
        self._states = states
        self._settings = config.supervisor
        self._drain_s = config.rollout.drain_s
        self._stopping = stopping
        self._first: Exit | None = None
        """The first failure after which a replica was not restarted."""

    async def run(self) -> None:
        """Run until the last replica has left; then raise the first failure, by its exit code."""
        with self._states.received(self._tell):
            try:
                for child in self._children:
                    await child.start()
                self._tell()
                await self._keep_all()
            finally:
                await asyncio.gather(*(child.end(drain_s=LATE_S) for child in self._children))
        if self._first:
            raise CAUSES.get(self._first.code, RunFailed)(f"{self._first.name} {self._first.cause}")

    def _tell(self) -> None:
        if any(self._states.is_ready(child.pid) for child in self._children):
            service_manager().ready(self._status, stop_s=self._drain_s)
        else:
            service_manager().waiting(self._status())

    def _status(self) -> str:
        ready = sum(self._states.is_ready(child.pid) for child in self._children)
        return f"{ready} of {counted(len(self._children), 'replica')} ready"

    async def _keep_all(self) -> None:
        draining = asyncio.create_task(self._drain())
        try:
            await asyncio.gather(*(self._keep(child) for child in self._children))
        finally:
            draining.cancel()

    async def _keep(self, child: Child) -> None:
        budget = RestartBudget(self._settings.max_restarts, self._settings.window_s)
        is_over = self._stopping.is_set
        code = await keep_alive(child, budget, after_exit=self._after_exit, exited=self._exited, is_over=is_over)
        if code in FINAL_CODES:
            self._stopping.set()

    async def _after_exit(self, code: int) -> AfterExit:
        is_over = self._stopping.is_set()
        # Nobody but this process tells them to leave once it is over; SIGTERM may come before they can handle it.
        if code == 0 or (is_over and code in (ToldToLeave.exit_code, -signal.SIGTERM)):
            return "leave"
        return "end" if is_over or code in FINAL_CODES else "restart"

    async def _exited(self, left: Exit) -> None:
        say = log.warning if left.restarting else log.error
        say("replica.exited", replica=left.name, cause=left.cause, restarting=left.restarting)
        if not left.restarting and self._first is None:
            self._first = left
        self._tell()

    async def _drain(self) -> None:
        """Drain all once ``stopping`` is set. `rollout.drain_s` limits the time; a second signal exits at once."""
        await self._stopping.wait()
        await asyncio.gather(*(child.end(drain_s=None) for child in self._children))


def _plan(found: Devices, shares: list[Devices], config: Config) -> dict[str, object]:
    """Log fields: number of replicas, their devices, and the reason for that number."""
    fields: dict[str, object] = {"replicas": len(shares), "devices": [str(share) for share in shares]}
    if found.kind == "cpu":
        fields["why"] = f"on the CPU: {found.source}"
    else:
        fields["why"] = f"{len(found.ids)} devices, {needed(found, config.rollout)} per replica ({found.source})"
    return fields
