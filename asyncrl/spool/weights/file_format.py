"""
Format of a file with one policy version, and the scan that finds its parts again.

    000007.weights
      header   magic 8 B │ format u16 │ 0 u16 │ description bytes u32 │ crc32 u32
               description (msgpack of `StoredWeights`)
      part     number u32 │ bytes u32 │ crc32 u32 │ payload
      part     ...

Little-endian. The crc32 of the header covers its description, that of a part its payload. A file gets its name when all
of it is on disk, so that a file with a name is complete.
"""

import struct
import zlib
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from asyncrl.errors import LedgerError
from asyncrl.messages.weights import StoredWeights

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
