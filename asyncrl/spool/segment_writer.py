"""
Segment files of payloads: their format, the scan after a crash, and the writer of the newest one.

    add ─▶ buffers in memory ─ flush ─▶ page cache ─ sync ─▶ disk
                                                             ▲ durable: bytes below this offset cannot be lost
"""

import os
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from asyncrl.errors import LedgerError
from asyncrl.files.atomic import flush
from asyncrl.messages.codec import Value
from asyncrl.messages.spool import Permit
from asyncrl.messages.trajectory import TrajectorySummary, Unit

# ── segment format ────────────────────────────────────────────────────────────────────────────
# Format of a segment file, and the scan that reads it back after a crash.
#
#     segment_000007.seg
#       header   magic 8 B │ format u16 │ 0 u16 │ segment u32
#       record   mark 4 B │ entry bytes u32 │ payload bytes u32 │ payload crc32 u32 │ durable u64 │ crc32 u32
#                entry (msgpack) │ payload
#       record   ...
#
# Little-endian. The last crc32 of a record covers its head and its entry, the other one its payload.
#
# A crash may leave any part of the last, unacknowledged records on disk, so invalid bytes at the end are not damage.
# ``durable`` separates the two cases: it is the offset below which everything was on disk when the record was
# written. Invalid bytes below the ``durable`` of some later record are damage to acknowledged data; otherwise they
# are a torn tail.

FORMAT = 1
MAGIC = b"arl.seg\n"
MARK = b"\xa5rec"
"""First bytes of a record. Not UTF-8, so that no text is mistaken for a record."""
HEADER = struct.Struct("<8sHHI")
HEAD = struct.Struct("<4sIIIQ")
CHECK = struct.Struct("<I")


Key = tuple[Unit, int, TrajectorySummary]
"""Identity of a payload: a trajectory of one lease, up to the tokens it had. Each key is stored once."""


class Entry(Value, frozen=True):
    """Description of a payload; with its `Place` enough to send `Stored` again."""

    unit: Unit
    lease_id: int
    summary: TrajectorySummary
    node: str
    incarnation: str
    permit: Permit = Permit()

    @property
    def key(self) -> Key:
        return self.unit, self.lease_id, self.summary


class Place(NamedTuple):
    """Location of a payload: a `SpoolRef` without the name of the spool."""

    segment: int
    offset: int
    """Offset of the payload's first byte in the file."""
    length: int
    crc32: int


class SegmentRecord(NamedTuple):
    entry: Entry
    place: Place


class Scan(NamedTuple):
    records: list[SegmentRecord]
    end: int
    """Offset after the last complete record; a torn tail starts here."""
    torn_bytes: int


def segment_path(directory: Path, segment: int) -> Path:
    return directory / f"segment_{segment:06d}.seg"


def encode_header(segment: int) -> bytes:
    return HEADER.pack(MAGIC, FORMAT, 0, segment)


def encode_head(entry: Entry, payload_bytes: int, crc32: int, durable: int) -> bytes:
    """Bytes of a record before its payload, as one buffer."""
    encoded = msgspec.msgpack.encode(entry)
    head = HEAD.pack(MARK, len(encoded), payload_bytes, crc32, durable)
    return head + CHECK.pack(zlib.crc32(encoded, zlib.crc32(head))) + encoded


def scan(path: Path, *, sealed: bool = False) -> Scan:
    """
    Read a whole segment file and check every byte.

    Args:
        sealed: A later segment exists, so this one was completely durable and a torn tail is damage too.

    Raises:
        LedgerError: The file is not a segment of this format, or durable bytes of it are damaged; names the offset.
    """
    try:
        with path.open("rb") as file:
            return _scan(file, path, sealed)
    except OSError as error:
        raise LedgerError(f"cannot read {path}: {error.strerror}") from error


def _scan(file: BinaryIO, path: Path, sealed: bool) -> Scan:
    size = path.stat().st_size
    segment = _read_header(file, path)
    records: list[SegmentRecord] = []
    end = HEADER.size
    while end < size:
        record = _read_record(file, segment, size)
        if record is None:
            if sealed or _was_durable(file, end):
                raise LedgerError(
                    f"{path} is damaged at offset {end}, in what was already on disk; restore the file from a copy"
                )
            break
        records.append(record)
        end = file.tell()
    return Scan(records, end, size - end)


def _read_header(file: BinaryIO, path: Path) -> int:
    raw = file.read(HEADER.size)
    if len(raw) < HEADER.size or not raw.startswith(MAGIC):
        raise LedgerError(f"{path} is not a spool segment (its first bytes are {raw[:8]!r}, expected {MAGIC!r})")
    _, version, _, segment = HEADER.unpack(raw)
    if version != FORMAT:
        raise LedgerError(f"{path} has segment format {version}, this asyncrl reads format {FORMAT}")
    return int(segment)


def _read_record(file: BinaryIO, segment: int, size: int) -> SegmentRecord | None:
    """The record at the file's position; None if it is incomplete or damaged."""
    head = file.read(HEAD.size + CHECK.size)
    lengths = _lengths(head)
    if lengths is None or file.tell() + sum(lengths) > size:
        return None
    encoded = file.read(lengths[0])
    if not _matches(head, encoded):
        return None
    offset = file.tell()
    payload = file.read(lengths[1])
    crc32 = HEAD.unpack_from(head)[3]
    if zlib.crc32(payload) != crc32:
        return None
    return SegmentRecord(msgspec.msgpack.decode(encoded, type=Entry), Place(segment, offset, len(payload), crc32))


def _was_durable(file: BinaryIO, damaged_at: int) -> bool:
    """True if a later record shows that the bytes at ``damaged_at`` were on disk before it was written."""
    file.seek(damaged_at + 1)
    rest = file.read()
    position = rest.find(MARK)
    while position >= 0:
        head = rest[position : position + HEAD.size + CHECK.size]
        lengths = _lengths(head)
        if lengths is not None:
            start = position + len(head)
            if _matches(head, rest[start : start + lengths[0]]) and HEAD.unpack_from(head)[4] > damaged_at:
                return True
        position = rest.find(MARK, position + 1)
    return False


def _lengths(head: bytes) -> tuple[int, int] | None:
    """Sizes of entry and payload, bytes; None if ``head`` is not the head of a record."""
    if len(head) < HEAD.size + CHECK.size or not head.startswith(MARK):
        return None
    _, entry_bytes, payload_bytes, _, _ = HEAD.unpack_from(head)
    return entry_bytes, payload_bytes


def _matches(head: bytes, encoded: bytes) -> bool:
    (check,) = CHECK.unpack_from(head, HEAD.size)
    return bool(zlib.crc32(encoded, zlib.crc32(head[: HEAD.size])) == check)


# ── segment writer ────────────────────────────────────────────────────────────────────────────

IOV_MAX = 1024
"""Most buffers that one writev accepts on Linux."""


class SegmentWriter:
    """
    Appends records to a new segment file, without copying payloads. After an OSError the writer is unusable.

    Invariant: ``durable`` advances only after an fsync has returned.
    """

    def __init__(self, directory: Path, segment: int) -> None:
        self.segment = segment
        self.durable = self.end = len(encode_header(segment))
        self._buffers: list[bytes | memoryview] = []
        self._fd = _create(segment_path(directory, segment), encode_header(segment))
        flush(directory)

    def add(self, entry: Entry, payload: memoryview) -> Place:
        """Buffer a record and return its place. ``payload`` is borrowed until `flush`."""
        crc32 = zlib.crc32(payload)
        head = encode_head(entry, payload.nbytes, crc32, self.durable)
        place = Place(self.segment, self.end + len(head), payload.nbytes, crc32)
        self._buffers += (head, payload)
        self.end = place.offset + place.length
        return place

    def flush(self) -> None:
        """Write all buffered records to the file, without an fsync."""
        buffers, self._buffers = self._buffers, []
        for first in range(0, len(buffers), IOV_MAX):
            batch = buffers[first : first + IOV_MAX]
            while batch:
                batch = _unwritten(batch, os.writev(self._fd, batch))

    def sync(self) -> bool:
        """Make all added records durable. Returns False if they were already."""
        if self.durable == self.end:
            return False
        self.flush()
        os.fdatasync(self._fd)
        self.durable = self.end
        return True

    def close(self) -> None:
        """Close the file. Records added after the last `sync` may be lost."""
        os.close(self._fd)


def _create(path: Path, header: bytes) -> int:
    """Create a segment file; it gets its name only after its header is durable. Returns the file descriptor."""
    unnamed = path.with_suffix(".new")
    fd = os.open(unnamed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.write(fd, header)
        os.fsync(fd)
        unnamed.rename(path)
    except OSError:
        os.close(fd)
        raise
    return fd


def _unwritten(buffers: list[bytes | memoryview], written: int) -> list[bytes | memoryview]:
    """Buffers that are still to be written, after the first ``written`` bytes of ``buffers``."""
    for index, buffer in enumerate(buffers):
        size = memoryview(buffer).nbytes
        if written < size:
            return [memoryview(buffer).cast("B")[written:], *buffers[index + 1 :]]
        written -= size
    return []
