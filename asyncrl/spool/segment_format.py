"""
Format of a segment file, and the scan that reads it back after a crash.

    segment_000007.seg
      header   magic 8 B │ format u16 │ 0 u16 │ segment u32
      record   mark 4 B │ entry bytes u32 │ payload bytes u32 │ payload crc32 u32 │ durable u64 │ crc32 u32
               entry (msgpack) │ payload
      record   ...

Little-endian. The last crc32 of a record covers its head and its entry, the other one its payload.

A crash may leave any part of the last, unacknowledged records on disk, so invalid bytes at the end are not damage.
``durable`` separates the two cases: it is the offset below which everything was on disk when the record was written.
Invalid bytes below the ``durable`` of some later record are damage to acknowledged data; otherwise they are a torn
tail.
"""

import struct
import zlib
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from asyncrl.actor.message import Value
from asyncrl.errors import LedgerError
from asyncrl.messages.spool import Permit
from asyncrl.messages.trajectory import TrajectorySummary, Unit

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


class Record(NamedTuple):
    entry: Entry
    place: Place


class Scan(NamedTuple):
    records: list[Record]
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
    records: list[Record] = []
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


def _read_record(file: BinaryIO, segment: int, size: int) -> Record | None:
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
    return Record(msgspec.msgpack.decode(encoded, type=Entry), Place(segment, offset, len(payload), crc32))


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
