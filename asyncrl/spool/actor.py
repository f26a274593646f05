"""
The spool stores payloads from rollouts on disk and serves them to rewards and the trainer.

    rollouts ── Put ──▶ queue ──▶ writer thread: append all, one fsync ──▶ Stored to the broker
    reward, trainer ── Fetch ──▶ memory, else reader thread ──▶ Fetched
    rollouts, trainer ── Fetch of pictures ──▶ reader thread ──▶ Fetched           in the broker's process
    broker ── Trim ──▶ writer thread drops from the index, reader thread deletes the files
    trainer ── PutWeights ──▶ weights thread ◀── ListWeights, FetchWeights ── rollouts that are in no collective
    trainer ── OfferCheckpoint, PutCheckpointPart ──▶ files thread ◀── ListFiles, FetchPart ── nodes that lack files

Puts that arrive during an fsync share the next one, so one fsync covers many payloads. The queue is bounded by the
broker's open leases.

The actor can run inside another process: it installs no signal handler, its threads end with `SpoolActor.run`, and
it stops when its task is cancelled.
"""

import asyncio
import shutil
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from msgspec.structs import replace

from asyncrl.errors import LedgerError, LinkClosed, LinkRefused
from asyncrl.failpoints import failpoint
from asyncrl.log import get_logger
from asyncrl.messages.codec import Message
from asyncrl.messages.files import FetchPart, FileList, FilePart, ListFiles, OfferCheckpoint, PutCheckpointPart
from asyncrl.messages.permit import Permits
from asyncrl.messages.session import Barred, Beat, Bye, Reject, Stop
from asyncrl.messages.spool import (
    Accepted,
    AcceptedKey,
    Fetch,
    Fetched,
    Put,
    PutItem,
    SpoolRef,
    Stored,
    StoredItem,
    Trim,
)
from asyncrl.messages.weights import FetchWeights, ListWeights, PutWeights
from asyncrl.records.metrics import Sample
from asyncrl.spool.checkpoints import CheckpointStore, FileServer
from asyncrl.spool.images import ImageStore
from asyncrl.spool.segment_writer import Entry
from asyncrl.spool.segments import Segments, remove
from asyncrl.spool.weights import WeightStore
from asyncrl.wire.files import MAX_PAYLOAD_BYTES
from asyncrl.wire.link import Hub, Link
from asyncrl.wire.permissions import spool_refusal
from asyncrl.wire.refusals import Refusals

log = get_logger()

Request = TypeVar("Request")
FileRequest = ListFiles | FetchPart | OfferCheckpoint | PutCheckpointPart

UNREADABLE = memoryview(b"")
"""Payload of a `Fetched` that could not be read."""
MAX_REFS = 4096
"""Most payloads and pictures that one `Fetch` may ask for."""


class SpoolActor:
    """
    Actor of a spool: stores and serves payloads. `Stored` is sent for a payload only once it is on disk.

    Args:
        name: `SpoolRef.spool` of its payloads; unique in the run.
        segments: Owned by the caller; only this actor may use them while it runs.
        hub: Connections of rollouts, rewards and the trainer.
        link: Link to the broker, after the handshake.
        weights: Owned as ``segments`` are. None ignores messages about weights.
        files: Files that this spool serves beside its payloads.
        checkpoints: Copies of the trainer's checkpoints. None ignores messages about them.
        images: Pictures of the prompts, owned as ``segments`` are. None has no picture.
        permits: Permits of the run: what they do not allow is not stored.
        accept: Called with the keys that may connect to ``hub``, whenever the broker tells others.
    """

    def __init__(
        self,
        name: str,
        segments: Segments,
        hub: Hub,
        link: Link,
        *,
        weights: WeightStore | None = None,
        files: FileServer | None = None,
        checkpoints: CheckpointStore | None = None,
        images: ImageStore | None = None,
        permits: Permits = Permits(),  # noqa: B008  stateless
        accept: Callable[[list[AcceptedKey]], None] = lambda _keys: None,
    ) -> None:
        self._name = name
        self._segments = segments
        self._hub = hub
        self._link = link
        self._puts: list[Put] = []
        self._put_arrived = asyncio.Event()
        self._write_s = 0.0
        """Seconds of writing and syncing."""
        self._files = files
        self._checkpoints = checkpoints
        self._images = images
        self._permits = permits
        self._accept = accept
        self._fetches: asyncio.Queue[tuple[str, Fetch]] = asyncio.Queue()
        self._weights = weights
        self._about_weights: asyncio.Queue[tuple[str, PutWeights | ListWeights | FetchWeights]] = asyncio.Queue()
        self._file_requests: asyncio.Queue[tuple[str, FileRequest]] = asyncio.Queue()
        self._refused = Refusals("spool.refused")
        self._refused_fetches = Refusals("spool.fetch_refused")
        self._unreadable = Refusals("spool.unreadable")

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
            ThreadPoolExecutor(1, thread_name_prefix=f"{self._name}-weights") as keeper,
            ThreadPoolExecutor(1, thread_name_prefix=f"{self._name}-files") as filer,
        ):
            await _first_to_end(
                self._serve(),
                self._follow(writer, reader),
                self._store(writer),
                self._answer(self._fetches, reader, self._read_all),
                self._answer(self._about_weights, keeper, self._answer_about_weights),
                self._answer(self._file_requests, filer, self._answer_files),
            )

    def heartbeat(self, lag_s: float) -> Beat:
        return Beat(lag_s)

    def status(self) -> str:
        return f"{len(self._segments)} payloads"

    def metrics(self) -> Iterator[Sample]:
        """Values of its metrics now, for a scrape."""
        segments = self._segments
        yield Sample("asyncrl_spool_payloads", len(segments))
        yield Sample("asyncrl_spool_segments", segments.num_segments)
        yield Sample("asyncrl_spool_written_bytes_total", segments.written_bytes)
        yield Sample("asyncrl_spool_syncs_total", segments.num_syncs)
        yield Sample("asyncrl_spool_sync_seconds_total", self._write_s)
        disk = shutil.disk_usage(segments.directory)
        yield Sample("asyncrl_spool_disk_free_bytes", disk.free)
        yield Sample("asyncrl_spool_disk_size_bytes", disk.total)

    async def _serve(self) -> None:
        """Handle messages of rollouts, reward nodes and trainers, without waiting for the disk."""
        while True:
            try:
                peer, message = await self._hub.receive()
            except LinkClosed:
                return
            if reason := spool_refusal(self._hub.owner(peer), message):
                self._refused.count(peer=peer, message=type(message).__name__, reason=reason)
                continue
            match message:
                case Put():
                    self._take(peer, message)
                case Fetch():
                    self._answer_from_memory(peer, message)
                case PutWeights() | ListWeights() | FetchWeights():
                    self._about_weights.put_nowait((peer, message))
                case ListFiles() | FetchPart() | OfferCheckpoint() | PutCheckpointPart():
                    self._file_requests.put_nowait((peer, message))
                case Bye():
                    self._hub.forget(peer)

    def _take(self, peer: str, put: Put) -> None:
        """
        Queue what a lease allows to store, and the sender's share of the disk.

        Of the rest nothing reaches the disk, and its sender, which gets no answer, repeats it.
        """
        allowed = [item for item in put.items if self._permits.allows(item.permit, item.lease_id, item.unit)]
        if num_refused := len(put.items) - len(allowed):
            self._refused.count(peer=peer, message="Put", reason=f"{num_refused} trajectories of no lease of this run")
        if not self._segments.has_room(put.node, sum(item.payload.nbytes for item in allowed)):
            self._refused.count(peer=peer, message="Put", reason=f"{put.node} holds half of the room for all nodes")
        elif allowed:
            self._puts.append(replace(put, items=allowed) if num_refused else put)
            self._put_arrived.set()

    async def _follow(self, writer: ThreadPoolExecutor, reader: ThreadPoolExecutor) -> None:
        """Handle messages of the broker."""
        run_in = asyncio.get_running_loop().run_in_executor
        async for message in self._link:
            match message:
                case Trim(segment=segment):
                    if trimmed := await run_in(writer, self._segments.trim, segment):
                        await run_in(reader, remove, trimmed)
                        log.info("spool.trimmed", spool=self._name, below=segment, files=len(trimmed))
                case Accepted(keys=keys):
                    self._accept(keys)
                case Barred(cause=cause, pause_s=pause_s):
                    log.warning("node.barred", cause=cause, seconds=pause_s)
                case Reject(reason=reason):
                    raise LinkRefused(reason)
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
        began_s = time.perf_counter()
        items_by_sender: dict[tuple[str, str], list[PutItem]] = {}
        for put in puts:
            items_by_sender.setdefault((put.node, put.incarnation), []).extend(put.items)
        stored = [Stored(*sender, self._append(sender, items)) for sender, items in items_by_sender.items()]
        failpoint("spool.appended")
        self._segments.sync()
        failpoint("spool.synced")
        self._write_s += time.perf_counter() - began_s
        return stored

    def _append(self, sender: tuple[str, str], items: list[PutItem]) -> list[StoredItem]:
        entries = [
            (Entry(item.unit, item.lease_id, item.summary, *sender, item.permit), item.payload) for item in items
        ]
        return [
            StoredItem(item.unit, item.lease_id, SpoolRef(self._name, *place), item.summary, item.permit)
            for item, place in zip(items, self._segments.append(entries), strict=True)
        ]

    def _answer_from_memory(self, peer: str, fetch: Fetch) -> None:
        """Answer a fetch whose payloads are all cached, refuse one of too much, and queue others for the reader."""
        num_asked = len(fetch.refs) + len(fetch.images)
        num_bytes = sum(max(ref.length, 0) for ref in fetch.refs)
        num_bytes += sum(self._images.size(digest) for digest in fetch.images) if self._images else 0
        if num_asked > MAX_REFS or num_bytes > MAX_PAYLOAD_BYTES:  # No payload and no picture is too large alone.
            self._refused_fetches.count(peer=peer, payloads=num_asked, max_bytes=MAX_PAYLOAD_BYTES)
            self._hub.send(peer, Fetched(fetch.request_id, [UNREADABLE] * num_asked))
            return
        if self._images and fetch.images:
            node = peer.rsplit(".", 2)[0]  # before the incarnation, and the number of the link
            self._images.num_sent[node] += len(fetch.images)
        recent = [self._segments.recent(ref) for ref in fetch.refs if ref.spool == self._name]
        payloads = [payload for payload in recent if payload is not None]
        if len(payloads) == num_asked:
            self._hub.send(peer, Fetched(fetch.request_id, payloads))
        else:
            self._fetches.put_nowait((peer, fetch))

    async def _answer(
        self,
        requests: "asyncio.Queue[tuple[str, Request]]",
        thread: ThreadPoolExecutor,
        answer: Callable[[Request], Message | None],
    ) -> None:
        """Answer queued requests, one after the other, in a thread of their own: no payload waits for a hash."""
        while True:
            peer, request = await requests.get()
            if (message := await asyncio.get_running_loop().run_in_executor(thread, answer, request)) is not None:
                self._hub.send(peer, message)

    def _answer_about_weights(self, request: PutWeights | ListWeights | FetchWeights) -> Message | None:
        return self._weights.answer(request) if self._weights else None

    def _answer_files(self, request: FileRequest) -> Message | None:
        if isinstance(request, OfferCheckpoint | PutCheckpointPart):
            return self._checkpoints.answer(request) if self._checkpoints else None
        if isinstance(request, FetchPart):
            content = self._files.read(request.sha256, request.offset, request.length) if self._files else b""
            return FilePart(request.sha256, request.offset, memoryview(content))
        try:
            return FileList(list(self._files.list(request.folder)) if self._files else [])
        except OSError as error:
            return FileList([], f"cannot read {error.filename}: {error.strerror}")

    def _read_all(self, fetch: Fetch) -> Fetched:
        images = [memoryview(self._images.read(digest) if self._images else b"") for digest in fetch.images]
        return Fetched(fetch.request_id, [self._read_one(ref) for ref in fetch.refs] + images)

    def _read_one(self, ref: SpoolRef) -> memoryview:
        try:
            if ref.spool != self._name:
                raise LedgerError(f"the payload is stored in spool {ref.spool!r}, this is {self._name!r}")
            return self._segments.read(ref)
        except LedgerError as error:
            self._unreadable.count(spool=self._name, ref=ref, reason=str(error))
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
