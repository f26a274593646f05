"""
The spool stores payloads from rollouts on disk and serves them to rewards and the trainer.

    rollouts ── Put ──▶ queue ──▶ writer thread: append all, one fsync ──▶ Stored to the broker
    reward, trainer ── Fetch ──▶ memory, else reader thread ──▶ Fetched
    broker ── Trim ──▶ writer thread drops from the index, reader thread deletes the files

Puts that arrive during an fsync share the next one, so one fsync covers many payloads. The queue is bounded by the
broker's open leases.

The actor can run inside another process: it installs no signal handler, its two threads end with `SpoolActor.run`, and
it stops when its task is cancelled.
"""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog

from asyncrl.actor.failpoints import reach
from asyncrl.actor.link import Hub, Link
from asyncrl.errors import LedgerError, LinkClosed
from asyncrl.messages import Bye, Fetch, Fetched, Put, PutItem, SpoolRef, Stop, Stored, StoredItem, Trim
from asyncrl.spool.segment_format import Entry
from asyncrl.spool.segments import Segments, remove

log = structlog.get_logger()

UNREADABLE = memoryview(b"")
"""Payload of a `Fetched` that could not be read."""


class SpoolActor:
    """
    A spool. `Stored` is sent for a payload only once it is on disk.

    Args:
        name: `SpoolRef.spool` of its payloads; unique in the run.
        segments: Owned by the caller; only this actor may use them while it runs.
        hub: Connections of rollouts, rewards and the trainer.
        link: Link to the broker, after the handshake.
    """

    def __init__(self, name: str, segments: Segments, hub: Hub, link: Link) -> None:
        self._name = name
        self._segments = segments
        self._hub = hub
        self._link = link
        self._puts: list[Put] = []
        self._put_arrived = asyncio.Event()
        self._fetches: asyncio.Queue[tuple[str, Fetch]] = asyncio.Queue()

    async def run(self) -> None:
        """
        Serve until the broker sends `Stop`, or the hub or the link is closed.

        Raises:
            RunFailed: A payload cannot be written. Its sender still has it.
            LinkReset: The broker restarted. Run a new actor on the same segments with a new link: senders repeat every
                put that was not settled, and stored payloads are recognized.
        """
        with (
            ThreadPoolExecutor(1, thread_name_prefix=f"{self._name}-write") as writer,
            ThreadPoolExecutor(1, thread_name_prefix=f"{self._name}-read") as reader,
        ):
            await _first_to_end(self._serve(), self._follow(writer, reader), self._store(writer), self._read(reader))

    async def _serve(self) -> None:
        """Handle messages of the peers, without waiting for the disk."""
        while True:
            try:
                peer, message = await self._hub.receive()
            except LinkClosed:
                return
            match message:
                case Put():
                    self._puts.append(message)
                    self._put_arrived.set()
                case Fetch():
                    self._answer_from_memory(peer, message)
                case Bye():
                    self._hub.forget(peer)
                case _:
                    log.warning("spool.unexpected", peer=peer, message=type(message).__name__)

    async def _follow(self, writer: ThreadPoolExecutor, reader: ThreadPoolExecutor) -> None:
        """Handle messages of the broker."""
        run_in = asyncio.get_running_loop().run_in_executor
        async for message in self._link:
            match message:
                case Trim(segment=segment):
                    if trimmed := await run_in(writer, self._segments.trim, segment):
                        await run_in(reader, remove, trimmed)
                        log.info("spool.trimmed", spool=self._name, below=segment, files=len(trimmed))
                case Stop():
                    return

    async def _store(self, writer: ThreadPoolExecutor) -> None:
        """Write queued puts and send `Stored` to the broker, until the link is closed."""
        while True:
            await self._put_arrived.wait()
            self._put_arrived.clear()
            puts, self._puts = self._puts, []
            stored_by_sender = await asyncio.get_running_loop().run_in_executor(writer, self._write, puts)
            try:
                for stored in stored_by_sender:
                    await self._link.send(stored)
            except LinkClosed:
                return

    def _write(self, puts: list[Put]) -> list[Stored]:
        """Make puts durable, in the writer thread. Returns one `Stored` for each sender."""
        items_by_sender: dict[tuple[str, str], list[PutItem]] = {}
        for put in puts:
            items_by_sender.setdefault((put.node, put.incarnation), []).extend(put.items)
        stored = [Stored(*sender, self._append(sender, items)) for sender, items in items_by_sender.items()]
        reach("spool.appended")
        self._segments.sync()
        reach("spool.synced")
        return stored

    def _append(self, sender: tuple[str, str], items: list[PutItem]) -> list[StoredItem]:
        entries = [(Entry(item.unit, item.lease_id, item.summary, *sender), item.payload) for item in items]
        return [
            StoredItem(item.unit, item.lease_id, SpoolRef(self._name, *place), item.summary)
            for item, place in zip(items, self._segments.append(entries), strict=True)
        ]

    def _answer_from_memory(self, peer: str, fetch: Fetch) -> None:
        """Answer a fetch whose payloads are all cached; queue any other for the reader thread."""
        recent = [self._segments.recent(ref) for ref in fetch.refs if ref.spool == self._name]
        payloads = [payload for payload in recent if payload is not None]
        if len(payloads) == len(fetch.refs):
            self._hub.send(peer, Fetched(fetch.request_id, payloads))
        else:
            self._fetches.put_nowait((peer, fetch))

    async def _read(self, reader: ThreadPoolExecutor) -> None:
        """Answer queued fetches from disk, one after the other."""
        while True:
            peer, fetch = await self._fetches.get()
            payloads = await asyncio.get_running_loop().run_in_executor(reader, self._read_all, fetch.refs)
            self._hub.send(peer, Fetched(fetch.request_id, payloads))

    def _read_all(self, refs: list[SpoolRef]) -> list[memoryview]:
        return [self._read_one(ref) for ref in refs]

    def _read_one(self, ref: SpoolRef) -> memoryview:
        try:
            if ref.spool != self._name:
                raise LedgerError(f"the payload is stored in spool {ref.spool!r}, this is {self._name!r}")
            return self._segments.read(ref)
        except LedgerError as error:
            log.error("spool.unreadable", spool=self._name, ref=ref, reason=str(error))
            return UNREADABLE


async def _first_to_end(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run all coroutines until the first one ends, cancel the others, and raise its error."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
