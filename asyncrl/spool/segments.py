"""
Payloads of one spool: append-only segment files, a cache of the newest payloads, and each node's share of the disk.

    append ─▶ segment_000004.seg ─ sync ─▶ durable          read ◀── memory, if recent
              segment_000003.seg   sealed                     ▲───── else one pread, checked
              segment_000002.seg   ─ trim ─▶ removed

Invariants:
    a `Key` is stored once: appending it again returns the place it already has;
    a segment is started only when all earlier ones are completely durable, and its number is never used again;
    after a failed write nothing more is written, because the contents of the disk are unknown.

Synchronous. `append`, `sync`, `trim` and `close` may run in one thread at a time, the other methods in any.
"""

import os
import shutil
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from asyncrl.errors import LedgerError, RunFailed
from asyncrl.files.atomic import REMEDY, TornTail, flush
from asyncrl.files.lock import try_lock
from asyncrl.messages.spool import SpoolRef
from asyncrl.spool.folder import segment_numbers
from asyncrl.spool.segment_writer import HEADER, Entry, Key, Place, Scan, SegmentWriter, scan, segment_path

# ── payload cache ─────────────────────────────────────────────────────────────────────────────
# In-memory cache of the newest payloads, so that a fetch soon after a put reads no disk.

COPIED_BYTES = 16 << 10
"""Smaller payloads are copied: libzmq receives small messages into a buffer of 8 KiB that each of them would keep."""
ENTRY_BYTES = 400
"""Memory of an entry beside the payload itself."""


class PayloadCache:
    """
    First-in, first-out cache: payloads are fetched soon after they arrive (reward) or much later (trainer). A payload
    larger than ``max_bytes`` is not cached. Entries count with what Python needs for them.

    A large payload is a view into its message and keeps the whole message in memory. Payloads of one message are added
    and evicted together, so the bytes counted are nearly the bytes held.

    One thread may `add` and `drop_below` while others `get`.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._payloads: dict[tuple[int, int], memoryview] = {}
        self._order: deque[tuple[int, int]] = deque()

    def add(self, segment: int, offset: int, payload: memoryview) -> None:
        """Cache ``payload``, which must not change from now on, and evict the oldest payloads over the limit."""
        if payload.nbytes + ENTRY_BYTES > self._max_bytes:
            return
        if payload.nbytes < COPIED_BYTES:
            payload = memoryview(bytes(payload))
        self._payloads[segment, offset] = payload
        self._order.append((segment, offset))
        self._bytes += payload.nbytes + ENTRY_BYTES
        while self._bytes > self._max_bytes:
            self._evict_oldest()

    def get(self, segment: int, offset: int) -> memoryview | None:
        return self._payloads.get((segment, offset))

    def drop_below(self, segment: int) -> None:
        """Evict payloads of segments older than ``segment``."""
        while self._order and self._order[0][0] < segment:
            self._evict_oldest()

    def _evict_oldest(self) -> None:
        self._bytes -= self._payloads.pop(self._order.popleft()).nbytes + ENTRY_BYTES


# ── shares ────────────────────────────────────────────────────────────────────────────────────
# Shares of a spool's disk: of several nodes none may hold more than half of what there is room for.
#
# A node with a bug, or a wish, can store each of its leases again and again; the others need room meanwhile.


class Shares:
    """Share of the disk that each node has taken: bytes by the name of the node, until their segment is trimmed."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()
        self._segments: dict[int, Counter[str]] = defaultdict(Counter)

    def stored(self, node: str, segment: int, num_bytes: int) -> None:
        self._held[node] += num_bytes
        self._segments[segment][node] += num_bytes

    def trimmed(self, below: int) -> None:
        """Forget the bytes in segments older than ``below``, which were deleted."""
        for segment in [number for number in self._segments if number < below]:
            self._held.subtract(self._segments.pop(segment))
        self._held = +self._held

    def allows(self, node: str, num_bytes: int, free_bytes: Callable[[], int]) -> bool:
        """True if a node may store so much more, with ``free_bytes()`` left on the disk."""
        own = self._held[node] + num_bytes
        others = self._held.total() - self._held[node]
        return not others or 2 * own <= self._held.total() + free_bytes()


# ── segments ──────────────────────────────────────────────────────────────────────────────────

SEGMENT_PAYLOADS = 4096
"""Payloads after which a segment is sealed: an index of `INDEX_BYTES` each is in memory until it is trimmed."""
INDEX_BYTES = 512
CACHE_BYTES = 64 << 20
"""Most that a spool holds of the newest payloads, with what Python needs for them."""


def most_indexed(num_open: int) -> int:
    """Payloads indexed at most while ``num_open`` may still be trained: those, and the others of two segments."""
    return num_open + 2 * SEGMENT_PAYLOADS


class Segments:
    """
    Append-only storage of payloads, locked by one process.

    Opening scans existing segments to rebuild the index, and truncates a torn tail (see ``torn``).

    Args:
        directory: Created if it is missing.
        segment_bytes: A segment of at least this size is sealed, and one of `SEGMENT_PAYLOADS`.
        cache_bytes: Size of the in-memory cache of the newest payloads.

    Raises:
        LedgerError: Another process has the directory open, or a segment is damaged; names the file and the offset.
    """

    def __init__(self, directory: Path, *, segment_bytes: int = 256 << 20, cache_bytes: int = CACHE_BYTES) -> None:
        self.num_syncs = 0
        self.written_bytes = 0
        """Bytes of payloads appended since opening."""
        self.torn: TornTail | None = None
        """The torn tail truncated on opening, if there was one."""
        self.directory = directory
        self.segment_bytes = segment_bytes
        """Size at which the newest segment is sealed, from the next append on."""
        self._shares = Shares()
        self._cache = PayloadCache(cache_bytes)
        self._index: dict[Key, Place] = {}
        self._keys: dict[int, list[Key]] = {}
        """Keys of the index by segment, for every existing segment, oldest first."""
        self._writer: SegmentWriter | None = None
        self._newest = -1
        self._broken = ""
        self._lock_fd = _lock(directory)
        try:
            self._recover()
        except BaseException:
            os.close(self._lock_fd)
            raise

    def __len__(self) -> int:
        return len(self._index)

    @property
    def num_segments(self) -> int:
        return len(self._keys)

    def append(self, items: Sequence[tuple[Entry, memoryview]]) -> list[Place]:
        """
        Store payloads that are new, and return the place of each. They are durable after the next `sync`.

        Args:
            items: Payloads are borrowed, and must not change while they are cached.

        Raises:
            RunFailed: The disk is full or broken, now or in an earlier call.
        """
        with self._writing():
            places = [self._place(entry, payload) for entry, payload in items]
            if self._writer is not None:
                self._writer.flush()
        return places

    def sync(self) -> None:
        """Make everything appended durable. Raises as `append`."""
        with self._writing():
            if self._writer is not None:
                self.num_syncs += self._writer.sync()

    def has_room(self, node: str, num_bytes: int) -> bool:
        """False if a node would hold more than its share of the disk; see `Shares`."""
        return self._shares.allows(node, num_bytes, lambda: shutil.disk_usage(self.directory).free)

    def recent(self, ref: SpoolRef | Place) -> memoryview | None:
        """Payload of ``ref`` if it is cached in memory, else None."""
        payload = self._cache.get(ref.segment, ref.offset)
        return payload if payload is not None and payload.nbytes == ref.length else None

    def read(self, ref: SpoolRef | Place) -> memoryview:
        """
        The payload, from memory or disk, with the length and checksum of ``ref``.

        Raises:
            LedgerError: The payload was trimmed, was never stored, or is damaged; names the file and the offset.
        """
        recent = self.recent(ref)
        if recent is not None:
            return recent
        path = segment_path(self.directory, ref.segment)
        try:
            payload = _pread(path, ref)
        except OSError as error:
            raise LedgerError(f"cannot read {path} at offset {ref.offset}: {error.strerror}") from error
        if len(payload) != ref.length or zlib.crc32(payload) != ref.crc32:
            raise LedgerError(
                f"{path} at offset {ref.offset} does not hold the {ref.length} bytes that were stored there"
            )
        return memoryview(payload)

    def missing(self, refs: Iterable[SpoolRef]) -> list[SpoolRef]:
        """The refs that no stored payload matches."""
        stored = set(self._index.values())
        return [ref for ref in refs if Place(ref.segment, ref.offset, ref.length, ref.crc32) not in stored]

    def trim(self, segment: int) -> list[Path]:
        """
        Drop segments older than ``segment`` from the index, but never the newest, which keeps the segment number.

        Returns the files to pass to `remove`, which is slow and need not delay writes.
        """
        keep_from = min(segment, self._newest)
        doomed = [number for number in self._keys if number < keep_from]
        for number in doomed:
            for key in self._keys.pop(number):
                if self._index[key].segment == number:
                    del self._index[key]
        self._cache.drop_below(keep_from)
        self._shares.trimmed(keep_from)
        return [segment_path(self.directory, number) for number in doomed]

    def close(self) -> None:
        """Sync, close and unlock the directory. Idempotent."""
        try:
            if not self._broken:
                self.sync()
        finally:
            if self._writer is not None:
                self._writer.close()
                self._writer = None
            if self._lock_fd >= 0:
                os.close(self._lock_fd)
                self._lock_fd = -1
            self._broken = self._broken or f"{self.directory} was closed"

    def _place(self, entry: Entry, payload: memoryview) -> Place:
        key = entry.key
        place = self._index.get(key)
        if place is None:
            place = self._open_writer().add(entry, payload)
            self.written_bytes += payload.nbytes
            self._remember(key, place)
            self._shares.stored(entry.node, place.segment, place.length)
            self._cache.add(place.segment, place.offset, payload)
        return place

    def _remember(self, key: Key, place: Place) -> None:
        self._index[key] = place
        self._keys[place.segment].append(key)

    def _open_writer(self) -> SegmentWriter:
        """Writer of the newest segment; starts a new segment if that is full, or if there is none."""
        writer = self._writer
        is_full = writer is not None and len(self._keys[writer.segment]) >= SEGMENT_PAYLOADS
        if writer is not None and (is_full or writer.end >= self.segment_bytes):
            self.num_syncs += writer.sync()
            self._writer = None
            writer.close()
            writer = None
        if writer is None:
            writer = self._writer = SegmentWriter(self.directory, self._newest + 1)
            self._newest = writer.segment
            self._keys[writer.segment] = []
        return writer

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn an OSError of this call into RunFailed, and refuse all later writes."""
        if self._broken:
            raise RunFailed(self._broken)
        try:
            yield
        except OSError as error:
            # After a failed fsync the kernel forgets which pages were lost, so a second fsync would wrongly succeed.
            self._broken = (
                f"the spool cannot write to {self.directory}: {error.strerror}; nothing acknowledged is lost: {REMEDY}"
            )
            raise RunFailed(self._broken) from error

    def _recover(self) -> None:
        for unnamed in self.directory.glob("segment_*.new"):
            unnamed.unlink()
        found = segment_numbers(self.directory)
        newest = max(found, default=-1)
        for number, path in found.items():
            is_newest = number == newest
            scanned = scan(path, sealed=not is_newest)
            if is_newest:
                self._repair(path, scanned)
            self._newest = number
            self._keys[number] = []
            for entry, place in scanned.records:
                self._remember(entry.key, place)
                self._shares.stored(entry.node, number, place.length)

    def _repair(self, path: Path, scanned: Scan) -> None:
        """Truncate the torn tail, and fsync records that a killed process left in the page cache only."""
        with path.open("r+b") as file:
            if scanned.torn_bytes:
                file.truncate(scanned.end)
                self.torn = TornTail(path, scanned.end, scanned.torn_bytes)
            os.fsync(file.fileno())


def remove(paths: Sequence[Path]) -> None:
    """Delete the files of trimmed segments. Raises RunFailed if one cannot be deleted."""
    try:
        for path in paths:
            path.unlink(missing_ok=True)
        if paths:
            flush(paths[0].parent)
    except OSError as error:
        raise RunFailed(f"the spool cannot remove {error.filename}: {error.strerror}; {REMEDY}") from error


def _lock(directory: Path) -> int:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        fd = os.open(directory, os.O_RDONLY)
        if try_lock(fd):
            return fd
    except OSError as error:
        raise LedgerError(f"cannot open the spool directory {directory}: {error.strerror}") from error
    os.close(fd)
    raise LedgerError(f"the spool directory {directory} is in use by another process")


def _pread(path: Path, ref: SpoolRef | Place) -> bytes:
    """Open the file for each read: a segment may be trimmed at any time, and closed descriptors are reused."""
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        if not HEADER.size <= ref.offset <= ref.offset + ref.length <= size:
            return b""
        return os.pread(fd, ref.length, ref.offset)
    finally:
        os.close(fd)
