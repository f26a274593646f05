"""
Check of a ledger's SQLite write-ahead log before SQLite opens it and silently drops the part it cannot use.

    ledger.sqlite-wal    header 32 B   magic │ version │ page size │ checkpoint number │ salts 8 B │ checksum 8 B
                         frame         page number │ database size in pages, or 0 │ salts 8 B │ checksum 8 B │ the page
                         frame         ...                              └ not 0: the frame commits a transaction
                         frames left over from before the last log restart, with other salts
    ledger.sqlite-shm    the WAL index: number of committed frames, as far as the last process knew

A checksum covers all earlier frames too, so the log ends at the first checksum that does not match. The bytes after it
are a torn tail if they can belong to a single transaction: its fsync had not returned, so no caller relied on it. They
are damage to durable records if a second transaction follows, which starts only after that fsync, or if the WAL index
counts them as committed.

Source: sqlite.org/walformat.html
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from asyncrl.errors import LedgerError
from asyncrl.files.disk import TornTail

HEADER = struct.Struct(">4I8s8s")
FRAME = struct.Struct(">2I8s8s")
ORDERS = {0x377F0682: "<", 0x377F0683: ">"}
"""Byte order of the checksummed words, by magic number."""
INDEX = struct.Struct("=4x4x4xBBxxI4x8x8s8s")
INDEX_CHECKED_BYTES = 40
BACKFILLED_AT = 96
Sums = tuple[int, int]


class _Index(NamedTuple):
    """Contents of the WAL index."""

    salts: bytes
    num_frames: int
    num_backfilled: int
    """Frames already copied into the database."""


def check_wal(ledger: Path) -> TornTail | None:
    """
    Check the log of ``ledger`` without changing it, also while its broker writes.

    Returns:
        The torn tail that SQLite will ignore; None if there is none.

    Raises:
        LedgerError: Committed records are damaged or missing; names the file and the offset.
    """
    path, index_path = (ledger.with_name(ledger.name + suffix) for suffix in ("-wal", "-shm"))
    try:
        index = _read_index(index_path)  # Read before the log, which may grow in between.
        log = _read(path)
        if len(log) < HEADER.size:
            index = _read_index(index_path)  # Read after the log: a log may vanish in between.
    except OSError as error:
        raise LedgerError(f"cannot read {error.filename}: {error.strerror}") from error
    if len(log) < HEADER.size:
        if index and index.num_frames > index.num_backfilled:
            raise _damage(path, 0, f"it has {len(log)} bytes, expected {index.num_frames} pages of records")
        return TornTail(path, 0, len(log)) if log else None
    return _check_log(path, log, index)


def _check_log(path: Path, log: bytes, index: _Index | None) -> TornTail | None:
    magic, _, page_bytes, _, salts, check = HEADER.unpack_from(log)
    order = ORDERS.get(magic)
    if order is None or struct.pack(">2I", *(sums := _checksum(log[: HEADER.size - 8], (0, 0), order))) != check:
        raise _damage(path, 0, "its header does not match its checksum")
    frame_bytes = FRAME.size + page_bytes
    valid, committed = _valid_frames(log, frame_bytes, salts, sums, order)
    end = HEADER.size + committed * frame_bytes
    if index and index.salts == salts and index.num_frames > committed:
        raise _damage(path, end, f"{committed} of {index.num_frames} committed pages can be read")
    following = _current_frames(log, HEADER.size + valid * frame_bytes, frame_bytes, salts)
    if any(following) and any(True for _ in following):
        raise _damage(path, HEADER.size + valid * frame_bytes, "committed pages follow that cannot be read")
    is_torn = (len(log) - HEADER.size) % frame_bytes or any(True for _ in _current_frames(log, end, frame_bytes, salts))
    return TornTail(path, end, len(log) - end) if is_torn else None


def _valid_frames(log: bytes, frame_bytes: int, salts: bytes, sums: Sums, order: str) -> tuple[int, int]:
    """Number of leading frames with matching checksums, and number of those that are committed."""
    valid = committed = 0
    for start in range(HEADER.size, len(log) - frame_bytes + 1, frame_bytes):
        _, commits, frame_salts, check = FRAME.unpack_from(log, start)
        sums = _checksum(log[start : start + 8], sums, order)
        sums = _checksum(log[start + FRAME.size : start + frame_bytes], sums, order)
        if frame_salts != salts or struct.pack(">2I", *sums) != check:
            break
        valid += 1
        committed = valid if commits else committed
    return valid, committed


def _current_frames(log: bytes, start: int, frame_bytes: int, salts: bytes) -> Iterator[bool]:
    """For each frame from ``start`` on that was written since the last log restart: True if it commits."""
    for at in range(start, len(log) - FRAME.size + 1, frame_bytes):
        _, commits, frame_salts, _ = FRAME.unpack_from(log, at)
        if frame_salts[:4] == salts[:4] or frame_salts[4:] == salts[4:]:  # A restart changes both salts.
            yield commits > 0


def _checksum(data: bytes, sums: Sums, order: str) -> Sums:
    """SQLite's checksum of pairs of 32-bit words, continued from ``sums``."""
    first, second = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second


def _read(path: Path) -> bytes:
    """Consistent copy of the log: a restart of the log during the read changes its header, so the read is repeated."""
    while True:
        try:
            log = path.read_bytes()
            with path.open("rb") as file:
                if file.read(HEADER.size) == log[: HEADER.size]:
                    return log
        except FileNotFoundError:
            return b""


def _read_index(path: Path) -> _Index | None:
    """The WAL index; None if it is missing, not initialized or does not match its checksum."""
    try:
        with path.open("rb") as file:
            raw = file.read(BACKFILLED_AT + 4)
    except FileNotFoundError:
        return None
    if len(raw) < BACKFILLED_AT + 4:
        return None
    is_initialized, _, num_frames, salts, check = INDEX.unpack_from(raw)
    sums = _checksum(raw[:INDEX_CHECKED_BYTES], (0, 0), "=")
    if (
        not is_initialized
        or raw[: INDEX.size] != raw[INDEX.size : 2 * INDEX.size]
        or struct.pack("=2I", *sums) != check
    ):
        return None
    (num_backfilled,) = struct.unpack_from("=I", raw, BACKFILLED_AT)
    return _Index(salts, num_frames, num_backfilled)


def _damage(path: Path, offset: int, what: str) -> LedgerError:
    return LedgerError(
        f"{path} is damaged at offset {offset}, in what was already on disk: {what}; "
        f"restore the ledger's files from a copy, or start a new run"
    )
