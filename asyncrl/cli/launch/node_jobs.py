"""The process of any other role finds the broker, and works until the run is over."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec import Struct

from asyncrl.client.handshake import identity
from asyncrl.client.run_address import RunAddress, find_run
from asyncrl.config.addresses import check_address
from asyncrl.errors import ConfigError, ToldToLeave
from asyncrl.messages.words import Role, WeightsVia
from asyncrl.node.machine.machine import require_train
from asyncrl.node.process.metrics_server import MetricsOptions
from asyncrl.node.process.process import Job, Stopping
from asyncrl.node.runner import ToldToStop, unless_told

Find = Callable[[], Awaitable[RunAddress]]

TOLD = "a signal told this process to leave, and its run goes on; to take a node away for good, use asyncrl drain"
"""Sentence of `ToldToLeave`."""


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


def until_run_is_over(work: Job, run_dir: Path | None) -> Job:
    """
    Job that does ``work`` until the run in ``run_dir`` is over, or the broker says Stop.

    It raises `ToldToLeave` if a signal ended it, and not the broker.
    """
    from asyncrl.node.run_end import unless_over

    async def job(stopping: Stopping) -> None:
        with suppress(ToldToStop):
            await unless_over(run_dir, work(stopping))
        if stopping.by_signal:
            raise ToldToLeave(TOLD)

    return job


def replicas_job(find: Find, name: str, replicas: str | None, devices: str | None, options: NodeOptions) -> Job | None:
    """Job that runs several rollouts; None without --replicas, for one rollout in this process."""
    if replicas is None:
        if devices is not None:
            raise ConfigError("--devices works only with --replicas; for one rollout, set CUDA_VISIBLE_DEVICES")
        return None
    if replicas != "auto" and not (replicas.isdecimal() and int(replicas)):
        raise ConfigError(f"--replicas is {replicas!r}: expected auto or a number of at least 1")
    from asyncrl.cli.launch.replicas import run_replicas

    count = None if replicas == "auto" else int(replicas)
    only = None if devices is None else [name.strip() for name in devices.split(",")]

    async def job(stopping: asyncio.Event) -> None:
        run = await unless_told(stopping, find())
        await run_replicas(
            run,
            name,
            count=count,
            only=only,
            weights=options.weights,
            may_fetch=options.may_fetch,
            wait_s=options.wait_s,
            stopping=stopping,
            metrics=options.metrics,
        )

    return job


def spool_job(find: Find, name: str, folder: Path | None, bind: str | None, wait_s: float) -> Job:
    """Job that serves the payloads in ``folder``; raises `ConfigError` without one."""
    from asyncrl.node.spool import run_spool

    if folder is None:
        raise ConfigError("--dir FOLDER is missing: the spool keeps its payloads there")
    if bind:
        check_address(bind, "--bind", binds=True)

    async def job(stopping: asyncio.Event) -> None:
        run = await unless_told(stopping, find())
        await run_spool(run, name, folder, bind=bind or "", wait_s=wait_s, stopping=stopping)

    return job


def node_job(role: Role, find: Find, name: str, options: NodeOptions) -> Job:
    """Job that runs one rollout, reward or trainer."""
    node = identity(role, name)

    async def job(stopping: asyncio.Event) -> None:
        if role in ("rollout", "trainer"):
            require_train()
        run = await unless_told(stopping, find())
        match role:
            case "rollout":
                from asyncrl.node.rollout.rollout import run_rollout

                await run_rollout(
                    run,
                    node,
                    wait_s=options.wait_s,
                    stopping=stopping,
                    weights=options.weights,
                    may_fetch=options.may_fetch,
                )
            case "reward":
                from asyncrl.node.reward import run_reward

                await run_reward(run, node, wait_s=options.wait_s, stopping=stopping)
            case "trainer":
                from asyncrl.node.trainer.trainer import run_trainer

                await run_trainer(run, node, wait_s=options.wait_s, stopping=stopping, may_fetch=options.may_fetch)

    return job
