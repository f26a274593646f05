"""Allow-list of a running broker: answers from memory, and reads its file again when it has changed."""

import time
from collections.abc import Callable
from pathlib import Path

from asyncrl.errors import ConfigError
from asyncrl.keys.allow_list import AllowedKey
from asyncrl.keys.allow_list_file import read_allow_list
from asyncrl.keys.key_folder import KeyFolder
from asyncrl.log import get_logger

log = get_logger()

Stamp = tuple[int, int, int, int]


class AllowedKeys:
    """
    Keys that may connect now. An invalid file changes nothing: the last valid list stays.

    Args:
        path: Folder of keys, or the file of the allow-list.
        clock: Seconds since the epoch; overlaps of rotations end by it.

    Raises:
        ConfigError: The file cannot be read, or is no allow-list.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = KeyFolder(path).allow_list_file if path.is_dir() else path
        self._clock = clock
        self._stamp = _stamp(self._path)
        self._allowed = read_allow_list(self._path)
        self._accepted = self._allowed.accepted(clock())

    def owner_of(self, public: bytes) -> AllowedKey | None:
        """Entry of the allow-list for a public key; None refuses it."""
        return self._allowed.owner_of(public, self._clock())

    def accepted(self) -> dict[bytes, AllowedKey]:
        """Entries by each public key that may connect now."""
        return self._allowed.accepted(self._clock())

    def refresh(self) -> list[bytes]:
        """
        Read the file again if it has changed.

        Returns:
            Public keys whose connections must end: they were accepted at the last look, and are refused, or are allowed
            under another name or without a role that they had.
        """
        stamp = _stamp(self._path)
        if stamp != self._stamp:
            self._stamp = stamp
            self._read()
        before, self._accepted = self._accepted, self._allowed.accepted(self._clock())
        return [public for public, key in before.items() if not _as_before(key, self._accepted.get(public))]

    def _read(self) -> None:
        try:
            self._allowed = read_allow_list(self._path)
        except ConfigError as error:
            log.error("allow_list.refused", reason=str(error), kept_keys=len(self._allowed))
        else:
            log.info("allow_list.read", keys=len(self._allowed))


def _as_before(before: AllowedKey, after: AllowedKey | None) -> bool:
    """True if a connection made with a key may go on."""
    return after is not None and after.name == before.name and set(before.roles) <= set(after.roles)


def _stamp(path: Path) -> Stamp | None:
    """Changes whenever the file is written, replaced, or made readable; None if there is no such file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
