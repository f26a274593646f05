"""
Identity of a spool: its files. `spool.json` in their folder keeps the name under which the ledger refers to them.

The name ends in an id that is made with the folder. So a spool that lost its files is another spool, and what the first
one stored is not looked for in the second.
"""

import secrets
from pathlib import Path

import msgspec
from msgspec import Struct

from asyncrl.errors import ConfigError, LedgerError
from asyncrl.files.atomic import replacing
from asyncrl.files.disk import needed

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
    try:
        found = msgspec.json.decode(file.read_bytes(), type=SpoolIdentity)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LedgerError(f"{file} is damaged: {error}; restore it from a copy") from error
    if found.name != f"{name}-{found.folder_id}":
        owner = found.name.removesuffix(f"-{found.folder_id}")
        raise ConfigError(f"{folder} has the payloads of the spool {owner}: give --name {owner}, or another --dir")
    return found


def write_identity(folder: Path, identity: SpoolIdentity) -> None:
    """Write `spool.json`. Raises RunFailed if the disk refuses it."""
    with needed(folder), replacing(folder / FILE) as unfinished:
        unfinished.write_bytes(msgspec.json.encode(identity))
