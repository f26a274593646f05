"""
Policy versions of one spool: a folder with a file for each, apart from the trajectories; their format and retention.

    put part 0 ─▶ 000007.new ─ put ... last part ─▶ fsync ─▶ 000007.weights ─▶ files, read        older ones deleted

A version that is put again takes the place of its earlier file. One that was not put to its end is forgotten when the
next begins.

Synchronous, for one thread at a time.
"""

import os
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from asyncrl.errors import LedgerError
from asyncrl.files.atomic import flush
from asyncrl.log import get_logger
from asyncrl.messages.weights import (
    FetchedWeights,
    FetchWeights,
    ListWeights,
    PutWeights,
    PutWeightsDone,
    StoredWeights,
    WeightsFile,
    WeightsList,
)

# ── file format ───────────────────────────────────────────────────────────────────────────────
# Format of a file with one policy version, and the scan that finds its parts again.
#
#     000007.weights
#       header   magic 8 B │ format u16 │ 0 u16 │ description bytes u32 │ crc32 u32
#                description (msgpack of `StoredWeights`)
#       part     number u32 │ bytes u32 │ crc32 u32 │ payload
#       part     ...
#
# Little-endian. The crc32 of the header covers its description, that of a part its payload. A file gets its name when
# all of it is on disk, so that a file with a name is complete.

FORMAT = 1
MAGIC = b"arl.wts\n"
HEADER = struct.Struct("<8sHHII")
PART = struct.Struct("<III")


class PartPlace(NamedTuple):
    offset: int
    """Offset of the payload's first byte in the file."""
    length: int
    crc32: int


class Contents(NamedTuple):
    weights: StoredWeights
    parts: list[PartPlace]


def encode_header(weights: StoredWeights) -> bytes:
    description = msgspec.msgpack.encode(weights)
    return HEADER.pack(MAGIC, FORMAT, 0, len(description), zlib.crc32(description)) + description


def encode_part_head(number: int, payload: memoryview, crc32: int) -> bytes:
    return PART.pack(number, payload.nbytes, crc32)


def scan(path: Path) -> Contents:
    """
    Read a file's description and the places of its parts, without their payloads.

    Raises:
        LedgerError: The file is not of this format, or is cut off; names the offset.
    """
    try:
        with path.open("rb") as file:
            return Contents(_description(file, path), _parts(file, path, path.stat().st_size))
    except OSError as error:
        raise LedgerError(f"cannot read {path}: {error.strerror}") from error


def _description(file: BinaryIO, path: Path) -> StoredWeights:
    head = file.read(HEADER.size)
    magic, number, _, length, crc32 = HEADER.unpack(head) if len(head) == HEADER.size else (b"", 0, 0, 0, 0)
    if magic != MAGIC or number != FORMAT:
        raise LedgerError(f"{path} does not hold weights in format {FORMAT}")
    description = file.read(length)
    if zlib.crc32(description) != crc32:
        raise LedgerError(f"the description of {path} at offset {HEADER.size} is damaged")
    try:
        return msgspec.msgpack.decode(description, type=StoredWeights)
    except msgspec.MsgspecError as error:
        raise LedgerError(f"the description of {path} is not one of format {FORMAT}: {error}") from error


def _parts(file: BinaryIO, path: Path, size: int) -> list[PartPlace]:
    parts: list[PartPlace] = []
    while (offset := file.tell()) < size:
        head = file.read(PART.size)
        number, length, crc32 = PART.unpack(head) if len(head) == PART.size else (-1, 0, 0)
        end = offset + PART.size + length
        if number != len(parts) or end > size:
            raise LedgerError(f"{path} is damaged at offset {offset}")
        parts.append(PartPlace(offset + PART.size, length, crc32))
        file.seek(end)
    return parts


# ── retention ─────────────────────────────────────────────────────────────────────────────────
# Which stored versions may be deleted.
#
#   anchor 20, delta 21 ... 40, anchor 40, delta 41 ... 60, anchor 60, delta 61      kept: everything from delta 21 on
#   └ deleted when anchor 60 is complete
#
# A rollout that joins reads the newest anchor and the deltas since. The anchor before it is kept for those that still
# read it, and the deltas from the one before that on: they are small, and a rollout that is behind needs no anchor.

KEPT_ANCHORS = 2


def superseded(stored: Sequence[StoredWeights]) -> list[int]:
    """Indices into ``stored``, complete files in the order they came, of the files to delete."""
    anchors = [index for index, weights in enumerate(stored) if weights.is_anchor]
    if len(anchors) <= KEPT_ANCHORS:
        return []
    return [*range(anchors[-1 - KEPT_ANCHORS]), anchors[-1 - KEPT_ANCHORS]]


# ── store ─────────────────────────────────────────────────────────────────────────────────────

log = get_logger()
Answer = PutWeightsDone | WeightsList | FetchedWeights


class _Unfinished:
    """A file that is being put."""

    def __init__(self, path: Path, weights: StoredWeights) -> None:
        self.path = path
        self.weights = weights
        self.parts: list[PartPlace] = []
        self._file: BinaryIO = path.open("wb")
        self._file.write(encode_header(weights))

    def add(self, put: PutWeights) -> None:
        self._file.write(encode_part_head(put.part, put.payload, put.crc32))
        self.parts.append(PartPlace(self._file.tell(), put.payload.nbytes, put.crc32))
        self._file.write(put.payload)

    def sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def remove(self) -> None:
        with suppress(OSError):  # of what is still to be written to a full disk
            self._file.close()
        self.path.unlink(missing_ok=True)


class WeightStore:
    """
    The weights of a spool. Opening deletes what was not put to its end, and damaged files, with a warning.

    Args:
        directory: Created if it is missing. Only one process may use it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stored: dict[int, Contents] = {}
        """Complete versions by the number of their file, oldest first."""
        self._unfinished: _Unfinished | None = None
        self._next_number = 0
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for path in directory.glob("*.new"):
                path.unlink()
        except OSError as error:
            raise LedgerError(f"cannot open the folder of stored weights {directory}: {error.strerror}") from error
        for path in sorted(directory.glob("*.weights")):
            self._find(path)

    @property
    def files(self) -> list[WeightsFile]:
        """Complete versions, oldest first."""
        return [
            WeightsFile(contents.weights, len(contents.parts), sum(part.length for part in contents.parts))
            for contents in self._stored.values()
        ]

    def answer(self, message: PutWeights | ListWeights | FetchWeights) -> Answer:
        """Serve one message of a trainer or a rollout."""
        match message:
            case PutWeights(part=part):
                try:
                    self.put(message)
                except LedgerError as error:
                    return PutWeightsDone(part, str(error))
                return PutWeightsDone(part)
            case ListWeights():
                return WeightsList(self.files)
            case FetchWeights():
                return self.read(message)

    def put(self, put: PutWeights) -> None:
        """
        Store a part; after the last one the version is on disk, and those that it supersedes are deleted.

        Raises:
            LedgerError: The part is damaged, or not the next one, or cannot be written. Its version is forgotten.
        """
        try:
            self._add(put)
        except OSError as error:
            self._forget()
            raise LedgerError(f"cannot store weights in {self._directory}: {error.strerror}") from error
        except LedgerError:
            self._forget()
            raise

    def read(self, fetch: FetchWeights) -> FetchedWeights:
        """One part, or the answer that it is no longer here. A damaged version is left out from then on."""
        number, contents = self._number(fetch.weights)
        if contents is None or not 0 <= fetch.part < len(contents.parts):
            return FetchedWeights(-1, memoryview(b""), 0)
        place, path = contents.parts[fetch.part], self._path(number)
        payload = _read(path, place)
        if payload is None:
            log.error("spool.weights_unreadable", path=str(path), cause=f"part {fetch.part} is damaged")
            del self._stored[number]
            return FetchedWeights(-1, memoryview(b""), 0)
        return FetchedWeights(fetch.part, memoryview(payload), place.crc32)

    def close(self) -> None:
        """Close the store, and forget files that were not put to their end. Idempotent."""
        self._forget()

    def _add(self, put: PutWeights) -> None:
        if put.part == 0:
            self._forget()
            self._unfinished = _Unfinished(self._directory / f"{self._next_number:06d}.new", put.weights)
        file = self._unfinished
        if file is None or file.weights != put.weights or put.part != len(file.parts):
            raise LedgerError(f"part {put.part} of version {put.weights.policy_version} came out of order")
        if zlib.crc32(put.payload) != put.crc32:
            raise LedgerError(f"part {put.part} of version {put.weights.policy_version} is damaged")
        file.add(put)
        if put.is_last:
            self._complete(file)

    def _complete(self, file: _Unfinished) -> None:
        file.sync()
        number, self._next_number = self._next_number, self._next_number + 1
        file.path.rename(self._path(number))
        flush(self._directory)
        self._unfinished = None
        earlier, _ = self._number(file.weights)
        self._stored[number] = Contents(file.weights, file.parts)
        numbers = list(self._stored)
        doomed = superseded([contents.weights for contents in self._stored.values()])
        for old in {earlier, *(numbers[index] for index in doomed)} - {-1}:
            del self._stored[old]
            self._path(old).unlink(missing_ok=True)

    def _find(self, path: Path) -> None:
        """Take a file of an earlier process into account."""
        if not path.stem.isdecimal():
            return
        self._next_number = int(path.stem) + 1
        try:
            self._stored[int(path.stem)] = scan(path)
        except LedgerError as error:
            log.warning("spool.weights_unreadable", path=str(path), cause=str(error))
            path.unlink(missing_ok=True)

    def _forget(self) -> None:
        if (file := self._unfinished) is not None:
            self._unfinished = None
            file.remove()

    def _number(self, weights: StoredWeights) -> tuple[int, Contents | None]:
        """Number and contents of a version's file; -1 and None if it is not here."""
        found = ((number, contents) for number, contents in self._stored.items() if contents.weights == weights)
        return next(found, (-1, None))

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:06d}.weights"


def _read(path: Path, place: PartPlace) -> bytes | None:
    """Payload of one part as it was put; None if it cannot be read, or its checksum is wrong."""
    try:
        with path.open("rb") as file:
            payload = os.pread(file.fileno(), place.length, place.offset)
    except OSError:
        return None
    return payload if len(payload) == place.length and zlib.crc32(payload) == place.crc32 else None
