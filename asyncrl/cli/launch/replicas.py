"""
`asyncrl-node --role rollout --replicas N`: several rollouts of one machine, each a child process with its own devices.

    broker ─ configuration ─▶ devices, shared out ─▶ NAME-0, NAME-1, ... ─▶ all have left, or the first cause

A replica that dies is started again within the run's budget (`supervisor.max_restarts`). When that is spent it stays
away while the others go on; a mistake in the configuration, which they share, makes them all leave.
"""

import asyncio
import os
import signal

import structlog

from asyncrl.actor.supervise import FINAL_CODES, LATE_S, Child, Exit, RestartBudget, Verdict, keep_alive
from asyncrl.cli.launch.children import role_process
from asyncrl.client.handshake import identity, join, leave
from asyncrl.config.sections import Config, from_json
from asyncrl.errors import AsyncrlError, ConfigError, LedgerError, LinkError, RunFailed
from asyncrl.node.machine.devices import Devices, chosen, find, share

log = structlog.get_logger()

CAUSES: dict[int, type[AsyncrlError]] = {kind.exit_code: kind for kind in (ConfigError, LedgerError, LinkError)}
"""What an exit code of a child is an exit code of."""


async def run_replicas(
    address: str,
    name: str,
    *,
    count: int | None,
    only: list[str] | None,
    wait_s: float,
    stopping: asyncio.Event,
) -> None:
    """
    Run rollouts until they have all left: the run is over, or ``stopping`` was set and they are drained.

    Args:
        address: Of the broker, which knows what one replica needs.
        name: Of this node; its replicas are called NAME-0, NAME-1, ...
        count: How many; None for as many as there are devices for.
        only: The devices they may use; None for all.
        wait_s: For the broker to answer.

    Raises:
        ConfigError: There are too few devices, or a replica found that the configuration cannot work.
        LinkError: The broker does not answer.
        RunFailed: A replica stayed away; the message is the first cause.
    """
    config = await _configuration(address, name, wait_s)
    found = find(config.rollout.device, os.environ)
    if only is not None:
        found = chosen(found, only)
    shares = share(found, config.rollout, count, "--replicas")
    log.info("replicas.starting", **_plan(found, shares, config))
    options = ("--broker", address, "--wait", f"{wait_s:g}")
    children = [
        role_process("rollout", f"{name}-{i}", config, None, *options, devices=devices.environment())
        for i, devices in enumerate(shares)
    ]
    await Replicas(children, config, stopping).run()


class Replicas:
    """
    Keeps children running.

    Args:
        config: The run's.
        stopping: Makes them all leave when it is set.
    """

    def __init__(self, children: list[Child], config: Config, stopping: asyncio.Event) -> None:
        self._children = children
        self._settings = config.supervisor
        self._stopping = stopping
        self._first: Exit | None = None
        """Of those that did not leave as they should and stay away."""

    async def run(self) -> None:
        """
        Until the last has left.

        Raises:
            ConfigError, LedgerError, LinkError, RunFailed: By its exit code, what the first of them ended of.
        """
        try:
            for child in self._children:
                await child.start()
            await self._keep_all()
        finally:
            await asyncio.gather(*(child.end(drain_s=LATE_S) for child in self._children))
        if self._first:
            raise CAUSES.get(self._first.code, RunFailed)(f"{self._first.name} {self._first.cause}")

    async def _keep_all(self) -> None:
        draining = asyncio.create_task(self._drain())
        try:
            await asyncio.gather(*(self._keep(child) for child in self._children))
        finally:
            draining.cancel()

    async def _keep(self, child: Child) -> None:
        budget = RestartBudget(self._settings.max_restarts, self._settings.window_s)
        is_over = self._stopping.is_set
        code = await keep_alive(child, budget, judge=self._judge, exited=self._exited, is_over=is_over)
        if code in FINAL_CODES:
            self._stopping.set()

    async def _judge(self, code: int) -> Verdict:
        is_over = self._stopping.is_set()
        if code == 0 or (is_over and code == -signal.SIGTERM):  # It was told so early that it could not hand over.
            return "leave"
        return "end" if is_over or code in FINAL_CODES else "restart"

    async def _exited(self, left: Exit) -> None:
        say = log.warning if left.restarting else log.error
        say("replica.exited", replica=left.name, cause=left.cause, restarting=left.restarting)
        if not left.restarting and self._first is None:
            self._first = left

    async def _drain(self) -> None:
        """As long as each of them takes: `rollout.drain_s` bounds it, and a second signal ends it at once."""
        await self._stopping.wait()
        await asyncio.gather(*(child.end(drain_s=None) for child in self._children))


async def _configuration(address: str, name: str, wait_s: float) -> Config:
    link, welcome = await join(address, identity("supervisor", name), wait_s)
    await leave(link, "knows the configuration")
    return from_json(welcome.config)


def _plan(found: Devices, shares: list[Devices], config: Config) -> dict[str, object]:
    """For the log: how many, with which devices, and why so many."""
    fields: dict[str, object] = {"replicas": len(shares), "devices": [str(share) for share in shares]}
    if found.kind == "cpu":
        fields["why"] = f"on the CPU: {found.source}"
    elif config.rollout.engine == "transformers":
        fields["why"] = "rollout.engine 'transformers' decodes on the CPU"
    else:
        fields["why"] = (
            f"{len(found.ids)} devices, {config.rollout.vllm.tensor_parallel_size} a replica ({found.source})"
        )
    return fields
