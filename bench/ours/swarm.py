"""
A real broker process with its ledger on a real disk, and many scripted nodes with one socket each.

    broker ◀═ one TCP connection a node ═▶ 900 rollouts · 98 rewards · spool · trainer, all in one process

The nodes behave like those of ``ours.cluster`` but answer every message at once. There are no payloads: a separate
simulated spool reports them as stored, so that the CPU time of the broker process contains no spool work.

After all nodes have joined, they stay idle for a while. The CPU time of the broker in that time, for heartbeats and
acknowledgements, is subtracted from its CPU time under load.
"""

import asyncio
import time
from collections.abc import Coroutine
from itertools import count
from typing import Any

import uvloop
import zmq
from keyed import key_file
from meter import Meter, cpu_s
from msgspec import Struct
from msgspec.structs import replace
from ours.cluster import CAPACITY, GROUP_SIZE, halves, roles, verdicts
from ours.durable import start_broker
from processes import Processes, report

from asyncrl.messages.reward import Grade
from asyncrl.messages.rollout import Lease, Offer, Settled
from asyncrl.messages.session import Beat, Ready
from asyncrl.messages.spool import SpoolAddress, Stored
from asyncrl.messages.trainer import Batch, Commit, Stepped, Take
from asyncrl.messages.weights import Live, Published, Publishing, Transfer, Transferred
from asyncrl.messages.words import Role
from asyncrl.wire.handshake import Identity, hello, identity, join, send_beats
from asyncrl.wire.run_address import find_run
from asyncrl.wire.zmq_link import ZmqLink

PATIENCE_S = 60.0
OWN_SPOOL = "spool.1"
"""Name of the simulated spool, different from that of the broker's own spool."""
SETTLE_S = 1.0
IDLE_S = 2.0
MAX_SOCKETS = 65_535
"""Limit per ZeroMQ context; the default is 1,023."""


class Cost(Struct, frozen=True):
    """Resource use of the broker process, all its threads."""

    join_s: float
    """Seconds from the first connection until all nodes have joined."""
    join_cpu_ms: float
    """CPU milliseconds per node that joins."""
    idle_us: float
    """CPU microseconds per second and idle node, for heartbeats."""
    group_us: float
    """CPU microseconds per group, without the CPU time of as many idle nodes."""
    gross_group_us: float
    """CPU microseconds per group, including heartbeats."""
    groups_per_s: float


async def cost(processes: Processes, num_nodes: int, seconds: float, *broker_options: str) -> Cost:
    """Measure a broker with ``num_nodes`` nodes."""
    num_rollouts = sum(role == "rollout" for role in roles(num_nodes).values())
    broker_pid, address = await start_broker(
        processes, groups_per_step=num_rollouts, group_size=GROUP_SIZE, staleness=1, options=broker_options
    )
    swarm = await processes.start(__name__, "swarm", address, num_nodes, seconds, broker_pid, str(processes.path))
    return await processes.result(swarm, Cost, seconds + PATIENCE_S)


def swarm(address: str, num_nodes: str, seconds: str, broker_pid: str, result: str) -> None:
    zmq.Context.instance().set(zmq.MAX_SOCKETS, MAX_SOCKETS)
    report(result, uvloop.run(Swarm(address, int(num_nodes), int(broker_pid)).cost(float(seconds))))


class Swarm:
    """All nodes of a run except the broker."""

    def __init__(self, address: str, num_nodes: int, broker_pid: int) -> None:
        self._address = address
        self._num_nodes = num_nodes
        self._pid = broker_pid
        self._tasks: set[asyncio.Task[None]] = set()

    async def cost(self, seconds: float) -> Cost:
        """Join with all nodes, stay idle, then work for ``seconds``; measure each phase."""
        self._spool = await self._join(identity("spool", OWN_SPOOL), SpoolAddress(OWN_SPOOL, "ipc:///nowhere"))
        start_s, before_s = time.perf_counter(), cpu_s(self._pid)
        identities = [identity(role, name) for name, role in roles(self._num_nodes).items()]
        links = await asyncio.gather(*map(self._join, identities))
        join_s = time.perf_counter() - start_s
        join_cpu_ms = 1e3 * (cpu_s(self._pid) - before_s) / self._num_nodes
        for one, link in zip(identities, links, strict=True):
            if one.role != "trainer":
                self._start(_rollout(link, self._spool, one) if one.role == "rollout" else _reward(link))
        idle_us = await self._idle()
        meter = Meter(seconds, self._pid)
        await _train(links[-1], meter, groups_per_step=_number(identities, "rollout"))
        rate = meter.rate
        assert rate is not None
        beats_us = idle_us * self._num_nodes / rate.trajectories_per_s
        group_us = rate.middle_cpu_us
        return Cost(join_s, join_cpu_ms, idle_us, group_us - beats_us, group_us, rate.trajectories_per_s)

    async def _idle(self) -> float:
        await asyncio.sleep(SETTLE_S)
        before_s, start_s = cpu_s(self._pid), time.perf_counter()
        await asyncio.sleep(IDLE_S)
        seconds = time.perf_counter() - start_s
        return 1e6 * (cpu_s(self._pid) - before_s) / seconds / self._num_nodes

    async def _join(self, who: Identity, spool: SpoolAddress | None = None) -> ZmqLink:
        run = await find_run(self._address, key_file(who.node), PATIENCE_S)
        link, welcome = await join(run, who, PATIENCE_S, lambda who: replace(hello(who), spool=spool))
        self._start(send_beats(link, welcome.beat_s, Beat))
        return link

    def _start(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(job)
        self._tasks.add(task)
        task.add_done_callback(lambda done: done.cancelled() or done.result())


def _number(identities: list[Identity], role: Role) -> int:
    return sum(one.role == role for one in identities)


async def _rollout(link: ZmqLink, spool: ZmqLink, who: Identity) -> None:
    limit, policy_version = CAPACITY, 0
    await link.send(Ready())
    await link.send(Offer(limit))
    async for message in link:
        match message:
            case Lease():
                for items in halves(message, policy_version, OWN_SPOOL):
                    await spool.send(Stored(who.node, who.incarnation, items))
            case Settled(items=items):
                limit += len(items)
                await link.send(Offer(limit))
            case Transfer(transfer_group=transfer_group, policy_version=version):
                await link.send(Transferred(transfer_group, version, 0.0, 0))
                await link.send(Live(version, 0.0, 0.0))
                policy_version = version


async def _reward(link: ZmqLink) -> None:
    limit = 2 * CAPACITY
    await link.send(Offer(limit))
    async for message in link:
        if isinstance(message, Grade):
            limit += len(message.items)
            await link.send(verdicts(message))
            await link.send(Offer(limit))


async def _train(link: ZmqLink, meter: Meter, *, groups_per_step: int) -> None:
    """Take steps without computing anything until ``meter`` has finished; count groups as trajectories."""
    await link.send(Ready())
    await link.send(Publishing(0, 0))
    await _receive(link, Published)
    for step in count():
        await link.send(Take(step))
        await _receive(link, Batch)
        await link.send(Stepped(step, step, {}))
        await link.send(Commit(step, "nowhere"))
        await link.send(Publishing(step + 1, step + 1))
        await _receive(link, Published)
        meter.add(groups_per_step, 0)
        if meter.rate is not None:
            return


async def _receive(link: ZmqLink, kind: type[Published] | type[Batch]) -> None:
    """Wait for the next message of type ``kind``, and answer transfers in the meantime."""
    while not isinstance(message := await link.receive(), kind):
        if isinstance(message, Transfer):
            await link.send(Transferred(message.transfer_group, message.policy_version, 0.0, 0))


CHILDREN = {"swarm": swarm}
