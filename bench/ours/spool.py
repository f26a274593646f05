"""
asyncrl's data plane alone: a spool process, and a consumer that fetches each payload once it is stored.

    producer ── Put ──▶ spool: one sync for all that wait ◀─── Fetch ── consumer
        ▲                     └───────────── Stored ───────────────────▶ │
        └──────────────────────────── Settled ──────────────────────────┘

The consumer binds the control hub in place of the broker. No leases, no grading, no batches, no ledger.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import uvloop
from keyed import hub_keys, link_keys
from meter import Meter, Rate
from payloads import SUMMARY, payloads
from processes import Processes, report

from asyncrl.messages.rollout import Leased, Settled
from asyncrl.messages.session import Ready
from asyncrl.messages.spool import Put, PutItem, SpoolAddress, SpoolRef, SpoolSet, Stored, StoredItem, Trim
from asyncrl.messages.trajectory import Unit
from asyncrl.messages.wire import CODEC
from asyncrl.spool.actor import SpoolActor
from asyncrl.spool.segments import Segments
from asyncrl.wire.spools import PayloadClient, SpoolLinks
from asyncrl.wire.zmq_hub import ZmqHub
from asyncrl.wire.zmq_link import ZmqLink

PATIENCE_S = 60.0
WINDOW = 2048
"""Maximum trajectories put and not yet fetched; the same as in ``durable``."""
SEGMENT_BYTES = 32 << 20
"""Small, so that segments are trimmed and their memory is reused within a measurement."""
TRIM_EVERY = 1_000
"""Trajectories between two trims, which bound the disk space of a long measurement."""


async def flow(processes: Processes, batch: int, seconds: float) -> Rate:
    """Trajectories per second through the spool, over unix sockets."""
    control, bulk = (f"ipc://{processes.path / name}" for name in ("control", "bulk"))
    return await flow_at(processes, control, bulk, batch, seconds)


async def flow_at(processes: Processes, control: str, bulk: str, batch: int, seconds: float) -> Rate:
    """Trajectories per second through a spool that listens at ``bulk``; TCP takes the keys of ``$ASYNCRL_KEYS``."""
    keeper = await processes.start(__name__, "keep", control, bulk, processes.path / "spool")
    consumer = await processes.start(
        __name__, "consume", control, bulk, batch, seconds, keeper.pid or 0, str(processes.path)
    )
    await processes.start(__name__, "produce", control, bulk, batch)
    return await processes.result(consumer, Rate, seconds + PATIENCE_S)


async def keep(control: str, bulk: str, directory: str) -> None:
    hub = _hub(bulk)
    segments = Segments(Path(directory), segment_bytes=SEGMENT_BYTES)
    await SpoolActor("spool", segments, hub, _link(control, "spool")).run()


async def produce(control: str, bulk: str, batch: str) -> None:
    size = int(batch)
    link = _link(control, "producer.1")
    spool = _link(bulk, "producer.1")
    fresh = _items()
    credit = WINDOW
    await link.send(Ready())
    async for message in link:
        if isinstance(message, Settled):
            credit += len(message.items)
        while credit >= size:
            await spool.send(Put("producer", "1", [next(fresh) for _ in range(size)]))
            credit -= size


def _items() -> Iterator[PutItem]:
    ones = [memoryview(payload) for payload in payloads()]
    for number in count():
        yield PutItem(Unit(number, 0), 1, SUMMARY, ones[number % len(ones)])


async def consume(  # noqa: PLR0917  the arguments come from a command line
    control: str, bulk: str, batch: str, seconds: str, spool_pid: str, result: str
) -> None:
    consumer = _Consumer(control, bulk, int(batch), Meter(float(seconds), int(spool_pid)))
    await consumer.run()
    report(result, consumer.meter.rate)


class _Consumer:
    def __init__(self, control: str, bulk: str, batch: int, meter: Meter) -> None:
        self.meter = meter
        self._hub = _hub(control)
        address = SpoolAddress("spool", bulk)
        self._spools = SpoolLinks(lambda _: _link(bulk, "consumer.1"), SpoolSet([address]))
        self._payloads = PayloadClient(self._spools)
        self._batch = batch
        self._stored: list[StoredItem] = []
        self._num_fetched = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Fetch stored trajectories until the measurement ends."""
        self._start(self._spools.run())
        while self.meter.rate is None:
            peer, message = await self._hub.receive()
            match message:
                case Ready():
                    self._hub.send(peer, Settled([]))  # tells the producer that messages can reach it, so it starts
                case Stored():
                    self._stored += message.items
            while len(self._stored) >= self._batch:
                self._start(self._fetch(peer, self._stored[: self._batch]))
                del self._stored[: self._batch]

    def _start(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fetch(self, spool: str, items: list[StoredItem]) -> None:
        refs = [item.ref for item in items]
        await self._payloads.fetch_all(refs, PATIENCE_S)
        self.meter.add(len(refs), sum(ref.length for ref in refs))
        self._hub.send("producer.1", Settled([Leased(item.unit, item.lease_id) for item in items]))
        self._trim(spool, refs)

    def _trim(self, spool: str, refs: list[SpoolRef]) -> None:
        """Trim fetched segments; keep one more segment, because fetches can finish out of order."""
        before, self._num_fetched = self._num_fetched, self._num_fetched + len(refs)
        if before // TRIM_EVERY != self._num_fetched // TRIM_EVERY:
            self._hub.send(spool, Trim(refs[0].segment - 1))


def _hub(address: str) -> ZmqHub:
    return ZmqHub(address, CODEC, keys=hub_keys())


def _link(address: str, peer: str) -> ZmqLink:
    return ZmqLink(address, peer, CODEC, keys=link_keys(peer.partition(".")[0]))


def _in_loop(job: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    def run(*arguments: str) -> None:
        uvloop.run(job(*arguments))

    return run


CHILDREN = {"keep": _in_loop(keep), "produce": _in_loop(produce), "consume": _in_loop(consume)}
