"""
Every payload in a spool's directory, for audits. Nothing is locked or changed, so the spool may be in use.

A segment that is trimmed while it is read is left out. A torn tail of the newest segment is not damage.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from asyncrl.errors import LedgerError
from asyncrl.spool.segment_format import Entry, Place, scan


class Payload(NamedTuple):
    entry: Entry
    place: Place
    payload: bytes


class SegmentContents(NamedTuple):
    """Payloads of one segment file, or the reason they cannot be read."""

    path: Path
    payloads: list[Payload]
    problem: str = ""


def segment_numbers(directory: Path) -> dict[int, Path]:
    """Segment files by number, oldest first."""
    paths = (path for path in directory.glob("segment_*.seg") if path.stem.removeprefix("segment_").isdecimal())
    return dict(sorted((int(path.stem.removeprefix("segment_")), path) for path in paths))


def read_contents(directory: Path) -> Iterator[SegmentContents]:
    """Read and check every segment, one at a time; a segment of 256 MiB takes about a second."""
    found = segment_numbers(directory)
    for number, path in found.items():
        try:
            scanned = scan(path, sealed=number != max(found))
            raw = path.read_bytes()
        except (LedgerError, OSError) as error:
            if path.exists():
                yield SegmentContents(path, [], str(error))
            continue
        foreign = {place.segment for _, place in scanned.records} - {number}
        if foreign:
            yield SegmentContents(path, [], f"{path} is segment {foreign.pop()} by its header: it was swapped")
            continue
        payloads = [
            Payload(entry, place, raw[place.offset : place.offset + place.length]) for entry, place in scanned.records
        ]
        yield SegmentContents(path, payloads)
