"""
Writer of the newest segment file.

    add ─▶ buffers in memory ─ flush ─▶ page cache ─ sync ─▶ disk
                                                             ▲ durable: bytes below this offset cannot be lost
"""

import os
import zlib
from pathlib import Path

from asyncrl.files.atomic import flush
from asyncrl.spool.segment_format import Entry, Place, encode_head, encode_header, segment_path

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
    """The rest of ``buffers`` after their first ``written`` bytes."""
    for index, buffer in enumerate(buffers):
        size = memoryview(buffer).nbytes
        if written < size:
            return [memoryview(buffer).cast("B")[written:], *buffers[index + 1 :]]
        written -= size
    return []
