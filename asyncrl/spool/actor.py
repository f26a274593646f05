"""
Takes payloads off rollouts, puts them on disk, and hands them to rewards and the trainer.

    rollouts ── Put ──▶ waiting ──▶ writer thread: append all, one fsync ──▶ Stored to the broker
    reward, trainer ── Fetch ──▶ memory, else reader thread ──▶ Fetched
    broker ── Trim ──▶ writer thread forgets, reader thread removes

While an fsync runs, puts gather; the next one covers them all, so that the disk is asked once for many payloads.
What gathers is bounded by the leases the broker has given.

Safe inside someone else's process: it installs no signal handler, its two threads end with `SpoolActor.run`, and it
stops when its task is cancelled.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import structlog

from asyncrl.actor.failpoints import reach
from asyncrl.actor.link import Hub, Link
from asyncrl.errors import LedgerError, LinkClosed
from asyncrl.messages import Bye, Fetch, Fetched, Put, PutItem, SpoolRef, Stop, Stored, StoredItem, Trim
from asyncrl.spool.layout import Entry
from asyncrl.spool.segments import Segments, remove

Argument = TypeVar("Argument")
Result = TypeVar("Result")

log = structlog.get_logger()

GONE = memoryview(b"")
"""Payload of a `Fetched` that could not be read."""


class SpoolActor:
    """
    A spool. `Stored` is said of a payload when it is on disk, and never before.

    Args:
        name: What `SpoolRef.spool` says; unique in the run.
        segments: Owned by the caller, used by this actor alone while it runs.
        hub: Where rollouts, rewards and the trainer speak.
        link: To the broker, already greeted.
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
        Serve until the broker says `Stop`, or the hub or the link is closed.

        Raises:
            RunFailed: A payload cannot be written. Its sender still has it.
            LinkReset: The broker restarted. Run a new actor on the same segments with a new link: senders put again
                what was not settled, and it is found stored.
        """
        with (
            ThreadPoolExecutor(1, thread_name_prefix=f"{self._name}-write") as writer,
            ThreadPoolExecutor(1, thread_name_prefix=f"{self._name}-read") as reader,
        ):
            await _first_to_end(self._serve(), self._follow(writer, reader), self._store(writer), self._read(reader))

    async def _serve(self) -> None:
        """Hear the peers. Nothing here waits for the disk."""
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
        """Hear the broker."""
        async for message in self._link:
            match message:
                case Trim(segment=segment):
                    if trimmed := await _in(writer, self._segments.trim, segment):
                        await _in(reader, remove, trimmed)
                        log.info("spool.trimmed", spool=self._name, below=segment, files=len(trimmed))
                case Stop():
                    return

    async def _store(self, writer: ThreadPoolExecutor) -> None:
        """Write what has gathered, then tell the broker, until the link is closed."""
        while True:
            await self._put_arrived.wait()
            self._put_arrived.clear()
            puts, self._puts = self._puts, []
            facts = await _in(writer, self._write, puts)
            try:
                for stored in facts:
                    await self._link.send(stored)
            except LinkClosed:
                return

    def _write(self, puts: list[Put]) -> list[Stored]:
        """In the writer thread: the facts that are true once this returns, together for each sender."""
        of_sender: dict[tuple[str, str], list[PutItem]] = {}
        for put in puts:
            of_sender.setdefault((put.node, put.incarnation), []).extend(put.items)
        facts = [Stored(*sender, self._append(sender, items)) for sender, items in of_sender.items()]
        reach("spool.appended")
        self._segments.sync()
        reach("spool.synced")
        return facts

    def _append(self, sender: tuple[str, str], items: list[PutItem]) -> list[StoredItem]:
        entries = [(Entry(item.unit, item.lease_id, item.summary, *sender), item.payload) for item in items]
        return [
            StoredItem(item.unit, item.lease_id, SpoolRef(self._name, *place), item.summary)
            for item, place in zip(items, self._segments.append(entries), strict=True)
        ]

    def _answer_from_memory(self, peer: str, fetch: Fetch) -> None:
        """Answer at once if no disk is needed, otherwise let the reader thread do it."""
        recent = [self._segments.recent(ref) for ref in fetch.refs if ref.spool == self._name]
        payloads = [payload for payload in recent if payload is not None]
        if len(payloads) == len(fetch.refs):
            self._hub.send(peer, Fetched(fetch.request_id, payloads))
        else:
            self._fetches.put_nowait((peer, fetch))

    async def _read(self, reader: ThreadPoolExecutor) -> None:
        """Answer the fetches that need the disk, one after the other."""
        while True:
            peer, fetch = await self._fetches.get()
            payloads = await _in(reader, self._read_all, fetch.refs)
            self._hub.send(peer, Fetched(fetch.request_id, payloads))

    def _read_all(self, refs: list[SpoolRef]) -> list[memoryview]:
        """In the reader thread."""
        return [self._read_one(ref) for ref in refs]

    def _read_one(self, ref: SpoolRef) -> memoryview:
        try:
            if ref.spool != self._name:
                raise LedgerError(f"payload lies in spool {ref.spool!r}, this is {self._name!r}")
            return self._segments.read(ref)
        except LedgerError as error:
            log.error("spool.unreadable", spool=self._name, ref=ref, reason=str(error))
            return GONE


async def _in(thread: ThreadPoolExecutor, function: Callable[[Argument], Result], argument: Argument) -> Result:
    return await asyncio.get_running_loop().run_in_executor(thread, function, argument)


async def _first_to_end(*parts: Coroutine[Any, Any, None]) -> None:
    """Run the parts until one of them ends, end the others, and raise what it raised."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
