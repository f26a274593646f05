"""
A real broker process, its ledger on a real disk, and as many nodes as asked for, each with a socket of its own.

    broker ◀═ one TCP connection a node ═▶ 900 rollouts · 98 rewards · spool · trainer, all in one process

Nodes are those of ``ours.cluster``, less the waiting: each answers as soon as it hears. Payloads do not exist; a spool
of its own says that they are stored, so that what the broker's process uses is the broker's alone.

First all join, then for a while nobody works: what the broker uses in that time, for beats and acknowledgements, is
taken off what it uses when all work.
"""

import asyncio
import time
from collections.abc import Coroutine
from itertools import count
from typing import Any

import uvloop
import zmq
from meter import Meter, cpu_s
from msgspec import Struct
from ours.cluster import CAPACITY, GROUP_SIZE, halves, roles, verdicts
from ours.durable import start_broker
from processes import Processes, report

from asyncrl.actor.zmq_link import ZmqLink
from asyncrl.client.handshake import Identity, identity, join, send_beats
from asyncrl.messages import (
    Batch,
    Beat,
    Commit,
    Grade,
    Lease,
    Live,
    Offer,
    Published,
    Publishing,
    Ready,
    Role,
    Settled,
    Stepped,
    Stored,
    Take,
    Transfer,
    Transferred,
)

PATIENCE_S = 60.0
OWN_SPOOL = "spool.1"
"""Not to be taken for another start of the one inside the broker."""
SETTLE_S = 1.0
IDLE_S = 2.0
MAX_SOCKETS = 65_535
"""ZeroMQ allows a process 1,023 unless told otherwise."""


class Cost(Struct, frozen=True):
    """What the broker's process used, all its threads."""

    join_s: float
    """From the first connection until all were welcomed."""
    idle_us: float
    """CPU for one node that does nothing but beat, for a second."""
    group_us: float
    """CPU for a group, less what as many idle nodes use in the same time."""
    gross_group_us: float
    """All CPU for a group."""
    groups_per_s: float


async def cost(processes: Processes, num_nodes: int, seconds: float) -> Cost:
    """What ``num_nodes`` cost the broker."""
    num_rollouts = sum(role == "rollout" for role in roles(num_nodes).values())
    broker_pid, address = await start_broker(
        processes, groups_per_step=num_rollouts, group_size=GROUP_SIZE, staleness=1
    )
    swarm = await processes.start(__name__, "swarm", address, num_nodes, seconds, broker_pid, str(processes.path))
    return await processes.result(swarm, Cost, seconds + PATIENCE_S)


def swarm(address: str, num_nodes: str, seconds: str, broker_pid: str, result: str) -> None:
    zmq.Context.instance().set(zmq.MAX_SOCKETS, MAX_SOCKETS)
    report(result, uvloop.run(Swarm(address, int(num_nodes), int(broker_pid)).cost(float(seconds))))


class Swarm:
    """All nodes of a run but the broker."""

    def __init__(self, address: str, num_nodes: int, broker_pid: int) -> None:
        self._address = address
        self._num_nodes = num_nodes
        self._pid = broker_pid
        self._tasks: set[asyncio.Task[None]] = set()

    async def cost(self, seconds: float) -> Cost:
        """Join, be idle, work."""
        who = identity("spool", OWN_SPOOL)
        self._spool = await self._join(who)
        start_s = time.perf_counter()
        people = [identity(role, name) for name, role in roles(self._num_nodes).items()]
        links = await asyncio.gather(*map(self._join, people))
        join_s = time.perf_counter() - start_s
        for one, link in zip(people, links, strict=True):
            if one.role != "trainer":
                self._begin(_rollout(link, self._spool, one) if one.role == "rollout" else _reward(link))
        idle_us = await self._idle()
        meter = Meter(seconds, self._pid)
        await _train(links[-1], meter, groups_per_step=_number(people, "rollout"))
        rate = meter.rate
        assert rate is not None
        beats_us = idle_us * self._num_nodes / rate.trajectories_per_s
        return Cost(join_s, idle_us, rate.middle_cpu_us - beats_us, rate.middle_cpu_us, rate.trajectories_per_s)

    async def _idle(self) -> float:
        await asyncio.sleep(SETTLE_S)
        before_s, start_s = cpu_s(self._pid), time.perf_counter()
        await asyncio.sleep(IDLE_S)
        seconds = time.perf_counter() - start_s
        return 1e6 * (cpu_s(self._pid) - before_s) / seconds / self._num_nodes

    async def _join(self, who: Identity) -> ZmqLink:
        link, welcome = await join(self._address, who, PATIENCE_S)
        self._begin(send_beats(link, welcome.beat_s, Beat))
        return link

    def _begin(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(job)
        self._tasks.add(task)
        task.add_done_callback(lambda done: done.cancelled() or done.result())


def _number(people: list[Identity], role: Role) -> int:
    return sum(one.role == role for one in people)


async def _rollout(link: ZmqLink, spool: ZmqLink, who: Identity) -> None:
    limit = CAPACITY
    await link.send(Ready())
    await link.send(Offer(limit))
    async for message in link:
        match message:
            case Lease():
                for items in halves(message):
                    await spool.send(Stored(who.node, who.incarnation, items))
            case Settled(items=items):
                limit += len(items)
                await link.send(Offer(limit))
            case Transfer(transfer_group=transfer_group, policy_version=version):
                await link.send(Transferred(transfer_group, version, 0.0, 0))
                await link.send(Live(version, 0.0, 0.0))


async def _reward(link: ZmqLink) -> None:
    limit = 2 * CAPACITY
    await link.send(Offer(limit))
    async for message in link:
        if isinstance(message, Grade):
            limit += len(message.items)
            await link.send(verdicts(message))
            await link.send(Offer(limit))


async def _train(link: ZmqLink, meter: Meter, *, groups_per_step: int) -> None:
    """Steps that take no time, until ``meter`` has seen enough groups retire."""
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
    """Wait for the next message of a kind; take part in transfers meanwhile."""
    while not isinstance(message := await link.receive(), kind):
        if isinstance(message, Transfer):
            await link.send(Transferred(message.transfer_group, message.policy_version, 0.0, 0))


CHILDREN = {"swarm": swarm}
