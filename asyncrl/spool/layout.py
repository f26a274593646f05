"""
How a segment file is laid out, and how it is read back after a crash.

    segment_000007.seg
      header   magic 8 B │ format u16 │ 0 u16 │ segment u32
      record   mark 4 B │ entry bytes u32 │ payload bytes u32 │ payload crc32 u32 │ durable u64 │ crc32 u32
               entry (msgpack) │ payload
      record   ...

Little-endian. The last crc32 of a record covers its head and its entry, the other one its payload.

A crash may leave any part of the last, unacknowledged group of records on disk, so bad bytes at the end are not
damage. ``durable`` tells the two apart: it is the offset below which everything was on disk when the record was
placed. Bad bytes that no later record vouches for are a torn tail; bad bytes below some later record's ``durable``
are damage to something that was promised.
"""

import struct
import zlib
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from asyncrl.errors import LedgerError
from asyncrl.messages import TrajectorySummary, Unit, Value

FORMAT = 1
MAGIC = b"arl.seg\n"
MARK = b"\xa5rec"
"""Where a record may begin. Not UTF-8, so that no text is mistaken for it."""
HEADER = struct.Struct("<8sHHI")
HEAD = struct.Struct("<4sIIIQ")
CHECK = struct.Struct("<I")


Key = tuple[Unit, int, TrajectorySummary]
"""What is stored once: a trajectory of one lease, as far as it is written."""


class Entry(Value, frozen=True):
    """Whose payload this is: with its `Place` enough to say `Stored` again."""

    unit: Unit
    lease_id: int
    summary: TrajectorySummary
    node: str
    incarnation: str

    @property
    def key(self) -> Key:
        """It is stored once."""
        return self.unit, self.lease_id, self.summary


class Place(NamedTuple):
    """Where a payload lies: a `SpoolRef` without the name of the spool."""

    segment: int
    offset: int
    """Of the payload's first byte in the file."""
    length: int
    crc32: int


class Record(NamedTuple):
    """One stored payload, as a scan finds it."""

    entry: Entry
    place: Place


class Scan(NamedTuple):
    """What a segment file holds."""

    records: list[Record]
    end: int
    """Offset after the last whole record; a torn tail is what lies beyond."""
    torn_bytes: int


def segment_path(directory: Path, segment: int) -> Path:
    """File of ``segment``."""
    return directory / f"segment_{segment:06d}.seg"


def encode_header(segment: int) -> bytes:
    """First bytes of a segment file."""
    return HEADER.pack(MAGIC, FORMAT, 0, segment)


def encode_head(entry: Entry, payload_bytes: int, crc32: int, durable: int) -> bytes:
    """What stands before a payload. Returned in one piece, so that a record is two buffers to write."""
    about = msgspec.msgpack.encode(entry)
    head = HEAD.pack(MARK, len(about), payload_bytes, crc32, durable)
    return head + CHECK.pack(zlib.crc32(about, zlib.crc32(head))) + about


def scan(path: Path, *, sealed: bool = False) -> Scan:
    """
    Read a segment file from end to end and check every byte of it.

    Args:
        sealed: A later segment exists, so this one was wholly on disk: a torn tail is damage too.

    Raises:
        LedgerError: Not a segment file of this format, or damaged where it was once on disk; names the offset.
    """
    try:
        with path.open("rb") as file:
            return _scan(file, path, sealed)
    except OSError as error:
        raise LedgerError(f"cannot read {path}: {error.strerror}") from error


def _scan(file: BinaryIO, path: Path, sealed: bool) -> Scan:
    size = path.stat().st_size
    segment = _read_header(file, path)
    records: list[Record] = []
    end = HEADER.size
    while end < size:
        record = _read_record(file, segment, size)
        if record is None:
            if sealed or _vouched_for(file, end):
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


def _read_record(file: BinaryIO, segment: int, size: int) -> Record | None:
    """The record at the file's position, or None if what is there is not a whole and undamaged one."""
    head = file.read(HEAD.size + CHECK.size)
    lengths = _lengths(head)
    if lengths is None or file.tell() + sum(lengths) > size:
        return None
    about = file.read(lengths[0])
    if not _matches(head, about):
        return None
    offset = file.tell()
    payload = file.read(lengths[1])
    crc32 = HEAD.unpack_from(head)[3]
    if zlib.crc32(payload) != crc32:
        return None
    return Record(msgspec.msgpack.decode(about, type=Entry), Place(segment, offset, len(payload), crc32))


def _vouched_for(file: BinaryIO, damaged_at: int) -> bool:
    """Whether a record after ``damaged_at`` was written when the bytes there were already on disk."""
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
    """Bytes of entry and payload, if ``head`` looks like one at all."""
    if len(head) < HEAD.size + CHECK.size or not head.startswith(MARK):
        return None
    _, entry_bytes, payload_bytes, _, _ = HEAD.unpack_from(head)
    return entry_bytes, payload_bytes


def _matches(head: bytes, about: bytes) -> bool:
    (check,) = CHECK.unpack_from(head, HEAD.size)
    return bool(zlib.crc32(about, zlib.crc32(head[: HEAD.size])) == check)
