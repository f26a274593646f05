"""
Work of a node's process: the broker's serves a run directory; any other role finds the broker, and works until the run
is over.
"""

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Coroutine
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from asyncrl.broker.staleness_control import StalenessChoice
from asyncrl.config.run_file import load_config
from asyncrl.errors import AsyncrlError, ConfigError, ToldToLeave
from asyncrl.messages.words import Role, WeightsVia
from asyncrl.records.run_directory import RunDirectory
from asyncrl.runtime.local_address import outward_address
from asyncrl.runtime.machine import require_train
from asyncrl.runtime.metrics_server import MetricsOptions
from asyncrl.runtime.process import Job, StopEvent
from asyncrl.runtime.sessions import Find, RunNode
from asyncrl.terminal import echo
from asyncrl.wire.addresses import announced, bound_again, check_address, reached, tcp
from asyncrl.wire.run_address import find_run, leave_credentials, remove_credentials
from asyncrl.workers.child import dies_with, why


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
    from asyncrl.runtime.replicas import run_replicas

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
                from asyncrl.runtime.trainer import run_trainer

                return run_trainer(node, stopping, may_fetch=options.may_fetch)
        from asyncrl.runtime.reward import run_reward

        return run_reward(node, stopping)

    return job


# ── staleness process ─────────────────────────────────────────────────────────────────────────
# `asyncrl why RUN --staleness` as a process beside the broker, which must not wait for a simulation.

DEADLINE_S = 300.0


async def choose_staleness(path: Path) -> StalenessChoice:
    """
    Fit a plan to the run in ``path``, with the lowest priority.

    Raises `AsyncrlError` if the process fails, or is not done within `DEADLINE_S` seconds.
    """
    command = ("nice", "-n", "19", sys.executable, "-m", "asyncrl", "why", str(path), "--staleness", "--json")
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


# ── broker job ────────────────────────────────────────────────────────────────────────────────
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
    from asyncrl.runtime.broker import raise_file_limit, raise_gc_threshold, run_broker
    from asyncrl.runtime.held_run import held_run, is_complete
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
    config = resolve_steps(with_local_copies(load_config(config_path, overrides), partial(echo, err=True)))
    path = run_dir or Path(config.run.dir) / (config.run.name or config_path.stem)

    async def job(stopping: StopEvent) -> None:
        if is_complete(path, config):
            echo(f"the run in {path} is complete; to train it longer, raise run.steps", err=True)
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
                for at in recorded.read_text().split() if recorded.exists() else []:
                    remove_credentials(at)
        if stopping.by_signal and not is_complete(path, config):
            raise ToldToLeave("a signal told the broker to stop; started again, it continues the run")

    return job
