"""
The one segment that is being written.

    add ─▶ buffers in memory ─ flush ─▶ page cache ─ sync ─▶ disk
                                                             ▲ durable: nothing below it can be lost
"""

import os
import zlib
from pathlib import Path

from asyncrl.files.atomic import flush
from asyncrl.spool.layout import Entry, Place, encode_head, encode_header, segment_path

IOV_MAX = 1024
"""Buffers one writev takes on Linux."""


class Tail:
    """
    Appends records to a new segment file, without copying payloads. Any OSError leaves it unusable.

    Invariant: ``durable`` moves only when an fsync has returned.
    """

    def __init__(self, directory: Path, segment: int) -> None:
        self.segment = segment
        self.durable = self.end = len(encode_header(segment))
        self._buffers: list[bytes | memoryview] = []
        self._fd = _create(segment_path(directory, segment), encode_header(segment))
        flush(directory)

    def add(self, entry: Entry, payload: memoryview) -> Place:
        """Give a record its place. ``payload`` is borrowed until `flush`."""
        crc32 = zlib.crc32(payload)
        head = encode_head(entry, payload.nbytes, crc32, self.durable)
        place = Place(self.segment, self.end + len(head), payload.nbytes, crc32)
        self._buffers += (head, payload)
        self.end = place.offset + place.length
        return place

    def flush(self) -> None:
        """Hand what was added to the operating system."""
        buffers, self._buffers = self._buffers, []
        for first in range(0, len(buffers), IOV_MAX):
            batch = buffers[first : first + IOV_MAX]
            while batch:
                batch = _after(batch, os.writev(self._fd, batch))

    def sync(self) -> bool:
        """Put what was added on disk. Returns whether there was anything to do."""
        if self.durable == self.end:
            return False
        self.flush()
        os.fdatasync(self._fd)
        self.durable = self.end
        return True

    def close(self) -> None:
        """Give the file back. What was not synced may be lost."""
        os.close(self._fd)


def _create(path: Path, header: bytes) -> int:
    """A file that has its whole header from the moment it has its name."""
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


def _after(buffers: list[bytes | memoryview], written: int) -> list[bytes | memoryview]:
    """What is left of ``buffers`` once their first ``written`` bytes are gone."""
    for index, buffer in enumerate(buffers):
        size = memoryview(buffer).nbytes
        if written < size:
            return [memoryview(buffer).cast("B")[written:], *buffers[index + 1 :]]
        written -= size
    return []
