"""
Folder of a spool. Its `spool.json` keeps the name under which the ledger refers to its files; audits list every payload
in it.

The name ends in an id that is made with the folder. So a spool that lost its files is another spool, and what the first
one stored is not looked for in the second.
"""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from asyncrl.errors import ConfigError, LedgerError
from asyncrl.files.atomic import needed, replacing
from asyncrl.spool.segment_writer import Entry, Place, scan

FILE = "spool.json"
ID_BYTES = 3


class SpoolIdentity(Struct, frozen=True):
    """Name of a spool, and the run whose payloads it stores; empty until it has joined one."""

    name: str
    run_id: str = ""

    @property
    def folder_id(self) -> str:
        """The part of the name that is made with the folder."""
        return self.name.rpartition("-")[2]


def open_folder(folder: Path, name: str) -> SpoolIdentity:
    """
    Identity of the spool in ``folder``, which is made with ``name`` if it is new.

    Raises:
        ConfigError: The folder belongs to a spool of another name.
        LedgerError: Its identity is damaged.
        RunFailed: The disk refuses a write.
    """
    file = folder / FILE
    if not file.exists():
        found = SpoolIdentity(f"{name}-{secrets.token_hex(ID_BYTES)}")
        write_identity(folder, found)
        return found
    found = read_identity(folder)
    if found.name != f"{name}-{found.folder_id}":
        owner = found.name.removesuffix(f"-{found.folder_id}")
        raise ConfigError(f"{folder} has the payloads of the spool {owner}: give --name {owner}, or another --dir")
    return found


def read_identity(folder: Path) -> SpoolIdentity:
    """Identity of the spool in ``folder``; raises `ConfigError` if it has none, `LedgerError` if that is damaged."""
    file = folder / FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=SpoolIdentity)
    except FileNotFoundError:
        raise ConfigError(f"{folder} is no folder of a spool: there is no {FILE} in it") from None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LedgerError(f"{file} is damaged: {error}; restore it from a copy") from error


def write_identity(folder: Path, identity: SpoolIdentity) -> None:
    """Write `spool.json`. Raises RunFailed if the disk refuses it."""
    with needed(folder), replacing(folder / FILE) as unfinished:
        unfinished.write_bytes(msgspec.json.encode(identity))


# ── contents ──────────────────────────────────────────────────────────────────────────────────
# Every payload in a spool's directory, for audits. Nothing is locked or changed, so the spool may be in use.
#
# A segment that is trimmed while it is read is left out. A torn tail of the newest segment is not damage.


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
