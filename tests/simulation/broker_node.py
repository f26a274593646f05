"""
The broker's process: scheduler, ledger, hubs and spool, assembled as in `asyncrl.runtime.broker`.

The real `BrokerActor` and `SpoolActor` run here on a simulated disk. The invariants are checked at each message that
the broker receives or sends, and after each decision of the scheduler.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from asyncrl.broker.actor import BrokerActor
from asyncrl.broker.replay import replay
from asyncrl.broker.scheduler import Scheduler
from asyncrl.data.prompts import Draw
from asyncrl.errors import RunFailed
from asyncrl.messages.codec import Message
from asyncrl.messages.permit import Permits
from asyncrl.messages.spool import HOSTED_SPOOL, SpoolAddress
from asyncrl.messages.trajectory import Prompt
from asyncrl.messages.wire import CODEC
from asyncrl.records.times import TimesLine
from asyncrl.runtime import broker as process
from asyncrl.spool.actor import SpoolActor
from asyncrl.wire.handshake import Identity, spool_connector
from asyncrl.wire.link import Hub
from asyncrl.wire.zmq_hub import ZmqHub
from asyncrl.wire.zmq_link import ZmqLink
from tests.simulation.disk import Disk
from tests.simulation.ledger import SimLedger
from tests.simulation.nodes import World
from tests.simulation.plan import ADDRESS, ROWS
from tests.simulation.segments import SimSegments
from tests.simulation.virtual_time import PROCESS

PERMITS = Permits(b"of every simulated run")

Connect = Callable[[SpoolAddress], ZmqLink]


async def run_broker(world: World, who: Identity, stopping: asyncio.Event) -> None:
    """Run the process of a broker, which resumes from the simulated ledger."""
    config = world.plan.config
    ledger: Any = SimLedger(world.disk.ledger)
    segments: Any = SimSegments(world.disk.spool, segment_bytes=config.broker.segment_bytes)
    prompts: Any = Prompts()
    held_out = [prompts.at(0).prompt] * world.plan.pace.num_held_out if config.data.held_out else []
    scheduler = Scheduler(config, prompts, held_out, ledger.broker_term, permits=PERMITS)
    replay(scheduler, ledger.found)
    named = [slot.ref for group in scheduler.groups for slot in group.slots if slot.ref]
    world.invariants.restarted(scheduler, segments.missing(named))
    hub, bulk = ZmqHub(ADDRESS, CODEC), ZmqHub("ipc://*", CODEC)
    hosted = SpoolAddress(HOSTED_SPOOL, bulk.addresses[0])
    scheduler.spools.joined(hosted)
    broker = WatchedBroker(world, scheduler, hub, ledger, spool_connector(who, None))
    actor = partial(SpoolActor, HOSTED_SPOOL, segments, bulk, permits=PERMITS)
    spool = asyncio.create_task(process._run_spool(hub, hosted, actor, config.broker.beat_s), name="spool")
    spool.add_done_callback(lambda task: process._stop_on_error(task, broker))
    stop_on_signal = asyncio.create_task(process._stop_when(stopping, broker))
    try:
        await broker.run()
        if broker.is_suspended:
            raise RunFailed("the broker was told to stop")
    finally:
        for task in (spool, stop_on_signal):
            task.cancel()
        await asyncio.gather(spool, stop_on_signal, return_exceptions=True)
        for end in (hub, bulk):
            await end.aclose()
        segments.close()
        ledger.close()


class WatchedBroker(BrokerActor):
    """The real broker, with invariants checked."""

    def __init__(self, world: World, scheduler: Scheduler, hub: Hub, ledger: Any, connect: Connect) -> None:
        self._process = PROCESS.get()
        self._world = world
        directory: Any = world.directory
        watched: Any = WatchedHub(world, hub)
        super().__init__(
            world.plan.config,
            scheduler,
            watched,
            ledger,
            directory,
            connect=connect,
            run_id="run-1",
            broker_term=ledger.broker_term,
            clock=self._process.clock,
        )

    def suspend(self, cause: str) -> None:
        super().suspend(cause)
        self._world.invariants.parted()

    def _handle(self, peer: str, message: Message) -> None:
        owes_an_answer = self._scheduler.nodes.get(peer) and not self.is_suspended  # Else the next broker does.
        if self._process.is_alive and owes_an_answer:
            self._world.invariants.heard(message)
        super()._handle(peer, message)

    def _flush(self) -> None:
        if self._process.is_alive:
            self._world.invariants.rules(self._scheduler)
        super()._flush()


class WatchedHub:
    """The real hub, with invariants checked for every message sent."""

    def __init__(self, world: World, hub: Hub) -> None:
        self._world = world
        self._process = PROCESS.get()
        self._hub = hub
        self.refused_key = hub.refused_key
        self.receive = hub.receive
        self.forget = hub.forget
        self.owner = hub.owner

    def send(self, peer: str, message: Message) -> None:
        if self._process.is_alive:
            self._world.invariants.said(peer, message)
        self._hub.send(peer, message)


class Prompts:
    """Stand-in for a dataset; the answer of each prompt is its row."""

    def at(self, group_id: int) -> Draw:
        epoch, place = divmod(group_id, ROWS)
        row = (place * 2 + epoch) % ROWS
        return Draw(group_id, epoch, row, Prompt(text=f"question {row}", answer=str(row)))


class Directory:
    """Stand-in for `RunDirectory` on the simulated disk; keeps metrics, times and events in memory."""

    def __init__(self, disk: Disk) -> None:
        self.path = SimpleNamespace(name="run", resolve=lambda: "run")
        self.ledger = disk.ledger
        self.spool = disk.spool
        self.samples = None
        self.checkpoints = Path("the trainer's disk")
        self._metrics: list[dict[str, float]] = []
        self.times: list[TimesLine] = []
        self.events: list[dict[str, Any]] = []

    def append_event(self, kind: str, /, **fields: Any) -> None:
        self.events.append({"event": kind, **fields})

    def append_times(self, line: TimesLine) -> None:
        self.times.append(line)

    def append_metrics(self, metrics: dict[str, float]) -> None:
        self._metrics.append(metrics)

    def read_metrics(self) -> list[dict[str, float]]:
        return list(self._metrics)

    def read_events(self) -> list[dict[str, Any]]:
        return []

    def write_summary(self, summary: object) -> None:
        """Discard the summary."""
