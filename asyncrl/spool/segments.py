"""
The payloads of one spool: a directory of append-only segment files, one of which is being written.

    append ─▶ segment_000004.seg ─ sync ─▶ durable          read ◀── memory, if recent
              segment_000003.seg   sealed                     ▲───── else one pread, checked
              segment_000002.seg   ─ trim ─▶ gone

Invariants:
    a trajectory under one lease token, as far as it is written, is stored once: again, it is where it was;
    a segment is begun only when all before it are wholly on disk, and its number is never used again;
    after a failed write nothing more is written: what the disk holds is then unknown.

Synchronous. `append`, `sync`, `trim` and `close` belong to one thread at a time; `read` and `recent` to any.
"""

import fcntl
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from asyncrl.errors import LedgerError, RunFailed
from asyncrl.files.atomic import flush
from asyncrl.files.disk import REMEDY, TornTail
from asyncrl.messages import SpoolRef
from asyncrl.spool.layout import HEADER, Entry, Key, Place, Scan, scan, segment_path
from asyncrl.spool.recent import Recent
from asyncrl.spool.tail import Tail


class Segments:
    """
    Append-only storage of payloads, opened for this process alone.

    Opening scans what an earlier process left: it cuts a torn tail (see ``torn``) and knows again what is stored.

    Args:
        directory: Made if it is missing.
        segment_bytes: A segment that has reached this size is sealed.
        cache_bytes: Newest payloads kept in memory.

    Raises:
        LedgerError: Another process has it open, or a segment is damaged; names the file and the offset.
    """

    def __init__(self, directory: Path, *, segment_bytes: int = 256 << 20, cache_bytes: int = 64 << 20) -> None:
        self.num_syncs = 0
        self.torn: TornTail | None = None
        """The tail that was cut when it was opened, if the last process left one."""
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._recent = Recent(cache_bytes)
        self._index: dict[Key, Place] = {}
        self._keys: dict[int, list[Key]] = {}
        """Of the index, by segment, oldest first: every segment that there is."""
        self._tail: Tail | None = None
        self._newest = -1
        self._broken = ""
        self._lock_fd = _lock(directory)
        try:
            self._recover()
        except BaseException:
            os.close(self._lock_fd)
            raise

    def __len__(self) -> int:
        """Payloads stored and not trimmed."""
        return len(self._index)

    @property
    def newest(self) -> int:
        """The segment written last, -1 if there is none yet."""
        return self._newest

    def append(self, items: Sequence[tuple[Entry, memoryview]]) -> list[Place]:
        """
        Store payloads, or find those already stored. They are durable after the next `sync`.

        Args:
            items: Payloads are borrowed, and must not change while they are among the recent ones.

        Raises:
            RunFailed: The disk is full or broken. Nothing further can be stored.
        """
        with self._writing():
            places = [self._place(entry, payload) for entry, payload in items]
            if self._tail is not None:
                self._tail.flush()
        return places

    def sync(self) -> None:
        """
        Put everything appended on disk.

        Raises:
            RunFailed: It is not known what is on disk, and what is not.
        """
        with self._writing():
            if self._tail is not None:
                self.num_syncs += self._tail.sync()

    def recent(self, ref: SpoolRef | Place) -> memoryview | None:
        """The payload, if it is in memory."""
        payload = self._recent.get(ref.segment, ref.offset)
        return payload if payload is not None and payload.nbytes == ref.length else None

    def read(self, ref: SpoolRef | Place) -> memoryview:
        """
        The payload, from memory or disk, of the length and checksum ``ref`` says.

        Raises:
            LedgerError: It was trimmed, was never here, or is damaged; names the file and the offset.
        """
        recent = self.recent(ref)
        if recent is not None:
            return recent
        path = segment_path(self._directory, ref.segment)
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
        """Those of ``refs`` that are not stored here as they say."""
        stored = set(self._index.values())
        return [ref for ref in refs if Place(ref.segment, ref.offset, ref.length, ref.crc32) not in stored]

    def trim(self, segment: int) -> list[Path]:
        """
        Forget segments older than ``segment``, except the newest, whose number must stay known.

        Returns:
            Their files, for `remove`: that takes long, and nothing written need wait for it.
        """
        keep_from = min(segment, self._newest)
        doomed = [number for number in self._keys if number < keep_from]
        for number in doomed:
            for key in self._keys.pop(number):
                if self._index[key].segment == number:
                    del self._index[key]
        self._recent.drop_below(keep_from)
        return [segment_path(self._directory, number) for number in doomed]

    def close(self) -> None:
        """Sync, close, and let another process open the directory. Idempotent."""
        try:
            if not self._broken:
                self.sync()
        finally:
            self._release()

    def _release(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
        self._broken = self._broken or f"{self._directory} was closed"

    def _place(self, entry: Entry, payload: memoryview) -> Place:
        key = entry.key
        place = self._index.get(key)
        if place is None:
            place = self._writable_tail().add(entry, payload)
            self._remember(key, place)
            self._recent.add(place.segment, place.offset, payload)
        return place

    def _remember(self, key: Key, place: Place) -> None:
        self._index[key] = place
        self._keys[place.segment].append(key)

    def _writable_tail(self) -> Tail:
        """The segment being written; a new one if it is full, or if there is none."""
        tail = self._tail
        if tail is not None and tail.end >= self._segment_bytes:
            self.num_syncs += tail.sync()
            self._tail = None
            tail.close()
            tail = None
        if tail is None:
            tail = self._tail = Tail(self._directory, self._newest + 1)
            self._newest = tail.segment
            self._keys[tail.segment] = []
        return tail

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn a write error into the end of the run, for this call and all later ones."""
        if self._broken:
            raise RunFailed(self._broken)
        try:
            yield
        except OSError as error:
            # After a failed fsync the kernel forgets which pages were lost, so trying again would lie.
            self._broken = (
                f"the spool cannot write to {self._directory}: {error.strerror}; nothing acknowledged is lost: {REMEDY}"
            )
            raise RunFailed(self._broken) from error

    def _recover(self) -> None:
        for unnamed in self._directory.glob("segment_*.new"):
            unnamed.unlink()
        found = _segment_paths(self._directory)
        for number, path in found:
            is_newest = number == found[-1][0]
            scanned = scan(path, sealed=not is_newest)
            if is_newest:
                self._settle(path, scanned)
            self._newest = number
            self._keys[number] = []
            for entry, place in scanned.records:
                self._remember(entry.key, place)

    def _settle(self, path: Path, scanned: Scan) -> None:
        """Cut the torn tail; and what a killed process left in the page cache is promised only once it is on disk."""
        with path.open("r+b") as file:
            if scanned.torn_bytes:
                file.truncate(scanned.end)
                self.torn = TornTail(path, scanned.end, scanned.torn_bytes)
            os.fsync(file.fileno())


def remove(paths: Sequence[Path]) -> None:
    """
    Take the files of trimmed segments off the disk.

    Raises:
        RunFailed: The disk is broken.
    """
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
    except OSError as error:
        raise LedgerError(f"cannot open the spool directory {directory}: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise LedgerError(f"the spool directory {directory} is in use by another process") from error
    return fd


def _segment_paths(directory: Path) -> list[tuple[int, Path]]:
    """Segment numbers and files, oldest first."""
    paths = directory.glob("segment_*.seg")
    return sorted((int(path.stem.removeprefix("segment_")), path) for path in paths if path.stem[8:].isdigit())


def _pread(path: Path, ref: SpoolRef | Place) -> bytes:
    """Opened for each read: a segment may be trimmed at any time, and a number of a closed file may be reused."""
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        if not HEADER.size <= ref.offset <= ref.offset + ref.length <= size:
            return b""
        return os.pread(fd, ref.length, ref.offset)
    finally:
        os.close(fd)
