"""
A spool's segments on a simulated disk, with a page cache that is lost unless synced.

Stand-in for `asyncrl.spool.segments.Segments` with the same guarantees; fails like it when the disk is full.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from asyncrl.errors import LedgerError, RunFailed
from asyncrl.messages.spool import SpoolRef
from asyncrl.spool.segment_writer import Entry, Place
from tests.simulation.virtual_time import PROCESS

if TYPE_CHECKING:
    from tests.simulation.disk import Disk

RECENT = 6
"""Payloads cached in memory."""


class SpoolFolder:
    """Content of a spool's directory."""

    def __init__(self, disk: "Disk") -> None:
        self.disk = disk
        self.newest = -1
        self.payloads: dict[tuple[int, int], tuple[Entry, Place, bytes]] = {}
        """Durable payloads by segment and offset."""
        self.unsynced: list[tuple[Entry, Place, bytes]] = []
        """Payloads in the page cache only."""

    def keep(self, count: int) -> None:
        """Make the first ``count`` payloads of the page cache durable and lose the rest."""
        for stored in self.unsynced[:count]:
            self.payloads[stored[1].segment, stored[1].offset] = stored
        self.unsynced = []


class SimSegments:
    """Stand-in for `Segments`, opened by the running process."""

    def __init__(self, folder: SpoolFolder, *, segment_bytes: int) -> None:
        folder.keep(folder.disk.dice.randint(0, len(folder.unsynced)))  # Written by an earlier process.
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._offset = segment_bytes  # Forces a new segment.
        self._process = PROCESS.get()
        self._index = {entry.key: place for entry, place, _ in folder.payloads.values()}
        self._recent: dict[tuple[int, int], memoryview] = {}
        self._broken = ""

    def append(self, items: Sequence[tuple[Entry, memoryview]]) -> list[Place]:
        self._check()
        return [self._place(entry, bytes(payload)) for entry, payload in items]

    def sync(self) -> None:
        self._check()
        self._folder.keep(len(self._folder.unsynced))

    def has_room(self, node: str, num_bytes: int) -> bool:
        return True

    def recent(self, ref: SpoolRef | Place) -> memoryview | None:
        return self._recent.get((ref.segment, ref.offset))

    def read(self, ref: SpoolRef | Place) -> memoryview:
        at = ref.segment, ref.offset
        if at in self._recent:
            return self._recent[at]
        for stored in self._folder.unsynced:
            if stored[1][:2] == at:
                return memoryview(stored[2])
        if at not in self._folder.payloads:
            raise LedgerError(f"there is nothing at {at}")
        return memoryview(self._folder.payloads[at][2])

    def missing(self, refs: Iterable[SpoolRef]) -> list[SpoolRef]:
        stored = set(self._index.values())
        return [ref for ref in refs if Place(ref.segment, ref.offset, ref.length, ref.crc32) not in stored]

    def trim(self, segment: int) -> list[Path]:
        """Forget older segments; there are no files to delete."""
        self._check()
        below = min(segment, self._folder.newest)
        for at in [at for at in self._folder.payloads if at[0] < below]:
            del self._folder.payloads[at]
        self._recent = {at: payload for at, payload in self._recent.items() if at[0] >= below}
        self._index = {name: place for name, place in self._index.items() if place.segment >= below}
        return []

    def close(self) -> None:
        if self._process.is_alive and not self._broken and not self._folder.disk.is_full:
            self.sync()

    def _check(self) -> None:
        if self._folder.disk.is_full:
            self._broken = "the spool cannot write: the disk is full"
        if self._broken:
            raise RunFailed(self._broken)

    def _place(self, entry: Entry, payload: bytes) -> Place:
        if (place := self._index.get(entry.key)) is None:
            if self._offset >= self._segment_bytes:
                self._folder.keep(len(self._folder.unsynced))
                self._folder.newest += 1
                self._offset = 0
            place = self._index[entry.key] = Place(self._folder.newest, self._offset, len(payload), crc32(payload))
            self._offset += len(payload)
            self._folder.unsynced.append((entry, place, payload))
            self._recent[place.segment, place.offset] = memoryview(payload)
            if len(self._recent) > RECENT:
                del self._recent[next(iter(self._recent))]
        return place
