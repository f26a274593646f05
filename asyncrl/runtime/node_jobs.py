"""
Work of a node's process: the broker's serves a run directory; any other role finds the broker, and works until the run
is over.
"""

import asyncio
import os
import signal
import socket
import struct
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from asyncrl.broker.staleness_control import StalenessChoice
from asyncrl.config.config import Config, from_json
from asyncrl.config.run_file import load_config
from asyncrl.errors import AsyncrlError, ConfigError, LedgerError, LinkError, RunFailed, ToldToLeave
from asyncrl.log import get_logger
from asyncrl.messages.words import Role, WeightsVia
from asyncrl.records.formatting import counted
from asyncrl.records.run_directory import RunDirectory
from asyncrl.reward.actor import RewardActor, most_open
from asyncrl.reward.workers.pool import WorkerPool
from asyncrl.runtime.local_address import outward_address
from asyncrl.runtime.machine import Devices, chosen, find, needed, require_train, share
from asyncrl.runtime.metrics_server import MetricsOptions
from asyncrl.runtime.process import Job, StopEvent
from asyncrl.runtime.service_manager import ADDRESS_VARIABLE, STATE, service_manager
from asyncrl.runtime.sessions import Find, RunNode, join_steadily, unless_told
from asyncrl.runtime.supervisor import role_process, write_report
from asyncrl.served.app import open_models
from asyncrl.terminal import echo
from asyncrl.wire.addresses import announced, bound_again, check_address, reached, tcp
from asyncrl.wire.handshake import identity, leave, only_asking
from asyncrl.wire.run_address import RunAddress, find_run, leave_credentials, remove_credentials
from asyncrl.workers.child import (
    FINAL_CODES,
    LATE_S,
    AfterExit,
    Child,
    Exit,
    RestartBudget,
    dies_with,
    keep_alive,
    module_command,
    why,
)
from asyncrl.workers.forked import uncollected


class NodeOptions(Struct, frozen=True):
    """Options of nodes that join a broker."""

    weights: WeightsVia
    may_fetch: bool
    """Fetch a model that this machine lacks."""
    wait_s: float
    """Seconds to wait for the broker's answer."""
    metrics: MetricsOptions | None = None
    """Address of this process's metrics; those of child processes follow."""


def finder(role: Role, address: str | None, run_dir: Path | None, credentials: Path | None, wait_s: float) -> Find:
    """Function that finds the run's broker, given by ``--broker`` or ``--run-dir``; `ConfigError` unless by one."""
    if (address is None) == (run_dir is None):
        raise ConfigError(
            f"a {role} needs the broker's address, --broker tcp://HOST:PORT, or on its machine --run-dir: give one of "
            f"the two"
        )
    if address is not None:
        check_address(address, "--broker")
    return partial(find_run, address or str(run_dir), credentials, wait_s)


def replicas_job(node: RunNode, replicas: str | None, devices: str | None, options: NodeOptions) -> Job | None:
    """Job that runs several rollouts; None without --replicas, for one rollout in this process."""
    if replicas is None:
        if devices is not None:
            raise ConfigError("--devices works only with --replicas; for one rollout, set CUDA_VISIBLE_DEVICES")
        return None
    if replicas != "auto" and not (replicas.isdecimal() and int(replicas)):
        raise ConfigError(f"--replicas is {replicas!r}: expected auto or a number of at least 1")
    count = None if replicas == "auto" else int(replicas)
    only = None if devices is None else [name.strip() for name in devices.split(",")]

    async def job(stopping: StopEvent) -> None:
        async with node.part_of_run(stopping):
            await run_replicas(
                node.run,
                node.who.node,
                count=count,
                only=only,
                weights=options.weights,
                may_fetch=options.may_fetch,
                wait_s=options.wait_s,
                stopping=stopping,
                metrics=options.metrics,
            )

    return job


def spool_job(node: RunNode, folder: Path | None, bind: str | None) -> Job:
    """Job that serves the payloads in ``folder``; raises `ConfigError` without one."""
    from asyncrl.runtime.spool import run_spool

    if folder is None:
        raise ConfigError("--dir FOLDER is missing: the spool keeps its payloads there")
    if bind:
        check_address(bind, "--bind", binds=True)
    return partial(run_spool, node, folder=folder, bind=bind or "")


def node_job(node: RunNode, options: NodeOptions) -> Job:
    """Job that runs one rollout, reward or trainer, whose libraries are imported when it begins."""

    def job(stopping: StopEvent) -> Coroutine[Any, Any, None]:
        if node.who.role in ("rollout", "trainer"):
            require_train()
        match node.who.role:
            case "rollout":
                from asyncrl.runtime.rollout import run_rollout

                return run_rollout(node, stopping, weights=options.weights, may_fetch=options.may_fetch)
            case "trainer":
                with uncollected():
                    from asyncrl.runtime.trainer import run_trainer

                return run_trainer(node, stopping, may_fetch=options.may_fetch)
        return run_reward(node, stopping)

    return job


# ── staleness by a process beside the broker ───────────────────────────────────────────────────
# `asyncrl why RUN --staleness` as a process beside the broker, which must not wait for a simulation.

DEADLINE_S = 300.0


async def choose_staleness(path: Path) -> StalenessChoice:
    """
    Fit a plan to the run in ``path``, with the lowest priority.

    Raises `AsyncrlError` if the process fails, or is not done within `DEADLINE_S` seconds.
    """
    command = ("nice", "-n", "19", *module_command("asyncrl", "why", str(path), "--staleness", "--json"))
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, preexec_fn=dies_with(os.getpid())
        )
    except OSError as error:
        raise AsyncrlError(f"the process that fits a plan for the staleness was not started: {error}") from error
    try:
        async with asyncio.timeout(DEADLINE_S):
            out, errors = await process.communicate()
    except TimeoutError:
        raise AsyncrlError(f"no plan for the staleness was fitted within {DEADLINE_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    if process.returncode:
        cause = why(errors) or "no message"
        raise AsyncrlError(f"no plan for the staleness was fitted (exit code {process.returncode}): {cause}")
    try:
        return msgspec.json.decode(out, type=StalenessChoice)
    except msgspec.DecodeError as error:
        raise AsyncrlError(f"the process that fits a plan for the staleness gave no choice: {error}") from error


# ── the broker ─────────────────────────────────────────────────────────────────────────────────
# The broker's process holds the run directory, listens, and leaves its address and credentials for local nodes.


def broker_job(
    *,
    config_path: Path | None,
    overrides: tuple[str, ...],
    address: str | None,
    run_dir: Path | None,
    secret_file: Path | None,
    key_folder: Path | None,
    is_traced: bool = False,
) -> Job:
    """
    Job that serves the run in ``run_dir``, which is made if it does not exist.

    With ``is_traced`` it sends the spans of the run to the collector that the environment names.

    Raises:
        ConfigError: The run file is missing or wrong, or the address is.
    """
    from asyncrl.data.prompts import resolve_steps
    from asyncrl.files.access import restrict_umask
    from asyncrl.files.atomic import needed, replacing
    from asyncrl.records.run_record import is_served
    from asyncrl.runtime.broker import raise_file_limit, raise_gc_threshold, run_broker
    from asyncrl.runtime.held_run import held_run, refusal_recorded, why_complete
    from asyncrl.runtime.keys import broker_keys, require_keys
    from asyncrl.runtime.metrics_server import require_opentelemetry, spans_sent
    from asyncrl.runtime.model_files import with_local_copies
    from asyncrl.wire.sockets import require_bindable

    if is_traced:
        require_opentelemetry()

    if config_path is None:
        raise ConfigError("--config FILE is missing: the broker needs the run's configuration")
    if address:
        check_address(address, "--broker", binds=True)
        overrides = (*overrides, f'broker.bind="{address}"')
    directory = RunDirectory(run_dir) if run_dir else None
    # A broker that serves the run writes its events itself.
    with refusal_recorded(directory) if directory and not is_served(directory) else nullcontext():
        config = resolve_steps(with_local_copies(load_config(config_path, overrides), partial(echo, err=True)))
    path = run_dir or Path(config.run.dir) / (config.run.name or config_path.stem)

    async def job(stopping: StopEvent) -> None:
        if complete := why_complete(path, config):
            echo(complete, err=True)
            return
        restrict_umask(group_reads=config.run.share_with_group)
        raise_gc_threshold()
        raise_file_limit()
        require_keys(config.broker, key_folder)
        if not RunDirectory(path).config.is_file():  # A broker that cannot listen leaves no new run behind.
            for binds in (config.broker.binds, config.broker.spool_binds):
                require_bindable([at for at in binds if at.startswith("tcp://")])
        with held_run(path, config, secret_file) as run:
            keys = broker_keys(run, key_folder)
            # A restarted broker listens on its old port, where its nodes look for it.
            recorded = run.directory.address
            before = recorded.read_text().split() if recorded.exists() else []
            bind = bound_again(run.config.broker.binds, before)

            def listening(bound: list[str]) -> None:
                via = tcp(outward_address(), 0)
                for_nodes = [reached(announced([at], run.config.broker.advertise), via) for at in bound]
                with needed(recorded), replacing(recorded, durable=False) as unfinished:
                    unfinished.write_text("".join(f"{at}\n" for at in for_nodes))
                for at in for_nodes:
                    leave_credentials(at, keys.credentials_file)

            try:
                async with spans_sent(run.directory.path.name) if is_traced else nullcontext() as send_spans:
                    await run_broker(
                        run.config,
                        run.directory,
                        bind=bind,
                        keys=keys,
                        listening=listening,
                        stopping=stopping,
                        choose_staleness=choose_staleness,
                        send_spans=send_spans,
                    )
            finally:
                await _end(run.directory)
        if stopping.by_signal and not why_complete(path, config):
            raise ToldToLeave("a signal told the broker to stop; started again, it continues the run")

    return job


async def _end(directory: RunDirectory) -> None:
    """Remove the credentials of local nodes; write the report if the run is over, unless `asyncrl run` does that."""
    from asyncrl.records.run_record import is_supervised

    for at in directory.address.read_text().split() if directory.address.exists() else []:
        remove_credentials(at)
    is_due = directory.summary.exists() and not is_supervised(directory)
    if is_due and (cause := await asyncio.to_thread(write_report, directory)):
        log.warning("report.not_written", cause=f"{cause}; `asyncrl report {directory.path}` tries again")


# ── several rollouts on one machine ────────────────────────────────────────────────────────────
# `asyncrl-node --role rollout --replicas N`: several rollouts on one machine, each a child process with its own
# devices.
#
#     broker ─ configuration ─▶ devices, split up ─▶ NAME-0, NAME-1, ... ─▶ all have left, or the first failure
#
# A replica that dies is restarted within the run's budget (`supervisor.max_restarts`). Once the budget is spent, that
# replica ends and the others continue. A mistake in the configuration, which all replicas share, ends all of them.

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
            service_manager().starting(self._status())

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
    why = f"{len(found.ids)} devices, {needed(found, config.rollout)} per replica ({found.source})"
    if found.kind == "cpu":
        why = f"on the CPU: {found.source}"
    return {"replicas": len(shares), "devices": [str(share) for share in shares], "why": why}


# ── the reward node ────────────────────────────────────────────────────────────────────────────
# The reward process: a pool of worker processes, and the actor that feeds it.


async def run_reward(node: RunNode, stopping: StopEvent) -> None:
    """
    Score trajectories until the run is over or ``stopping`` is set. The workers outlive a restart of the broker.

    Raises:
        LinkError, ConfigError: The node could not start, or the broker is gone.
    """
    pool: WorkerPool | None = None
    async with AsyncExitStack() as stack, node.part_of_run(stopping):
        async for session in node.sessions():
            if pool is None:
                config = session.config
                models = await stack.enter_async_context(
                    open_models(config.reward_models, folder=session.models_folder)
                )
                pool = WorkerPool(config.reward, models.variables)
                stack.push_async_callback(pool.aclose)
                await session.wait_for(pool.start())
            async with session:
                actor = RewardActor(
                    pool=pool,
                    connection=session.connection(),
                    on_drain=stopping.set,
                    max_open=most_open(session.config),
                    models=models.uses,
                )
                await session.serve(actor)
