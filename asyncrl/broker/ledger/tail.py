"""
The end of a ledger's write-ahead log, read before SQLite opens it, which leaves out in silence what it cannot use.

    ledger.sqlite-wal    header 32 B   magic │ version │ page size │ round │ salts 8 B │ checksum 8 B
                         frame         page number │ pages in all, or 0 │ salts 8 B │ checksum 8 B │ the page
                         frame         ...          └ not 0: it ends a transaction
                         frames of an earlier round, which have other salts
    ledger.sqlite-shm    how many frames were committed, as far as the last process knew

Each checksum covers all frames before it too, so the first that does not fit ends the log. What lies behind it is a
torn tail if it may be of one transaction, whose sync had not returned: nobody was told of it. It is damage to what was
promised if a second transaction follows, which is begun only after that sync, or if the index knew it as committed.

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
"""Magic number ─▶ byte order of the words that are summed."""
INDEX = struct.Struct("=4x4x4xBBxxI4x8x8s8s")
INDEX_SUMMED = 40
BACKFILLED_AT = 96
Sums = tuple[int, int]


class _Promised(NamedTuple):
    """What the index knew."""

    salts: bytes
    num_frames: int
    num_backfilled: int
    """So many of them are in the database too."""


def examine(ledger: Path) -> TornTail | None:
    """
    Look at the log of ``ledger``, and change nothing. Its broker may be writing meanwhile.

    Returns:
        What SQLite is going to leave out; None if that is nothing.

    Raises:
        LedgerError: Committed records are damaged or missing; names the file and the offset.
    """
    path, index = (ledger.with_name(ledger.name + suffix) for suffix in ("-wal", "-shm"))
    try:
        promised = _promised(index)  # Before the log, which may grow meanwhile, ...
        log = _read(path)
        if len(log) < HEADER.size:
            promised = _promised(index)  # ... but vanishes after it.
    except OSError as error:
        raise LedgerError(f"cannot read {error.filename}: {error.strerror}") from error
    if len(log) < HEADER.size:
        if promised and promised.num_frames > promised.num_backfilled:
            raise _damage(path, 0, f"it has {len(log)} bytes, expected {promised.num_frames} pages of records")
        return TornTail(path, 0, len(log)) if log else None
    return _examine(path, log, promised)


def _examine(path: Path, log: bytes, promised: _Promised | None) -> TornTail | None:
    magic, _, page_bytes, _, salts, check = HEADER.unpack_from(log)
    order = ORDERS.get(magic)
    if order is None or _packed(sums := _summed(log[: HEADER.size - 8], (0, 0), order)) != check:
        raise _damage(path, 0, "its header is not as it was written")
    frame_bytes = FRAME.size + page_bytes
    whole, committed = _whole_frames(log, frame_bytes, salts, sums, order)
    end = HEADER.size + committed * frame_bytes
    if promised and promised.salts == salts and promised.num_frames > committed:
        raise _damage(path, end, f"{committed} of {promised.num_frames} committed pages can be read")
    behind = _of_this_round(log, HEADER.size + whole * frame_bytes, frame_bytes, salts)
    if any(ends_transaction for ends_transaction in behind) and any(True for _ in behind):
        raise _damage(path, HEADER.size + whole * frame_bytes, "committed pages follow that cannot be read")
    is_torn = (len(log) - HEADER.size) % frame_bytes or any(True for _ in _of_this_round(log, end, frame_bytes, salts))
    return TornTail(path, end, len(log) - end) if is_torn else None


def _whole_frames(log: bytes, frame_bytes: int, salts: bytes, sums: Sums, order: str) -> tuple[int, int]:
    """Frames from the first on that are as they were written, and how many of them are committed."""
    whole = committed = 0
    for start in range(HEADER.size, len(log) - frame_bytes + 1, frame_bytes):
        _, ends_transaction, its_salts, check = FRAME.unpack_from(log, start)
        sums = _summed(log[start : start + 8], sums, order)
        sums = _summed(log[start + FRAME.size : start + frame_bytes], sums, order)
        if its_salts != salts or _packed(sums) != check:
            break
        whole += 1
        committed = whole if ends_transaction else committed
    return whole, committed


def _of_this_round(log: bytes, start: int, frame_bytes: int, salts: bytes) -> Iterator[bool]:
    """The frames from ``start`` on that are not of an earlier round: whether each ends a transaction."""
    for at in range(start, len(log) - FRAME.size + 1, frame_bytes):
        _, ends_transaction, its_salts, _ = FRAME.unpack_from(log, at)
        if its_salts[:4] == salts[:4] or its_salts[4:] == salts[4:]:  # An earlier round differs in both.
            yield ends_transaction > 0


def _summed(data: bytes, sums: Sums, order: str) -> Sums:
    """SQLite's checksum of whole pairs of words, continued from ``sums``."""
    first, second = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second


def _packed(sums: Sums) -> bytes:
    return struct.pack(">2I", *sums)


def _read(path: Path) -> bytes:
    """All of the log as it was at one time: a new round begins with a new header."""
    while True:
        try:
            log = path.read_bytes()
            with path.open("rb") as file:
                if file.read(HEADER.size) == log[: HEADER.size]:
                    return log
        except FileNotFoundError:
            return b""


def _promised(path: Path) -> _Promised | None:
    """What the index says, if there is one and it is as it was written."""
    try:
        with path.open("rb") as file:
            index = file.read(BACKFILLED_AT + 4)
    except FileNotFoundError:
        return None
    if len(index) < BACKFILLED_AT + 4:
        return None
    is_made, _, num_frames, salts, check = INDEX.unpack_from(index)
    sums = _summed(index[:INDEX_SUMMED], (0, 0), "=")
    if not is_made or index[: INDEX.size] != index[INDEX.size : 2 * INDEX.size] or struct.pack("=2I", *sums) != check:
        return None
    (num_backfilled,) = struct.unpack_from("=I", index, BACKFILLED_AT)
    return _Promised(salts, num_frames, num_backfilled)


def _damage(path: Path, offset: int, what: str) -> LedgerError:
    return LedgerError(
        f"{path} is damaged at offset {offset}, in what was already on disk: {what}; "
        f"restore the ledger's files from a copy, or start a new run"
    )
