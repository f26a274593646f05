"""
Files of one JSON object a line, appended to by one process and read by any number, also while it writes.

A line counts once its newline is there: what follows the last newline is a line that is being written, or was when
its writer died, or the disk was full. Readers pass over it, and the next writer takes it away before it adds a line of
its own.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from asyncrl.errors import LedgerError
from asyncrl.files.disk import TornTail, needed


class JsonLines:
    """One such file. It is opened for each call: the writer keeps no handle, so nothing is to be closed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: Mapping[str, Any]) -> None:
        """
        Add one line. NaN and infinities, which JSON lacks, become null.

        Raises:
            RunFailed: The disk did not take it.
        """
        line = msgspec.json.encode(record) + b"\n"
        with needed(self.path), self.path.open("ab+") as file:
            _take_away_torn_line(file)
            file.write(line)

    def cut(self) -> TornTail | None:
        """
        Take away a line whose writer died, if there is one.

        Raises:
            RunFailed: The disk did not let go of it.
        """
        if not self.path.exists():
            return None
        with needed(self.path), self.path.open("rb+") as file:
            num_bytes = _take_away_torn_line(file)
            return TornTail(self.path, file.seek(0, 2), num_bytes) if num_bytes else None

    def read(self) -> list[dict[str, Any]]:
        """
        Every whole line; none if there is no file.

        Raises:
            LedgerError: A line that was written to its end is not a JSON object, or the disk cannot read it; names it.
        """
        lines = self._lines(0)
        return [self._decode(line, f"line {number}") for number, line in enumerate(lines, start=1)]

    def since(self, offset: int) -> list[tuple[dict[str, Any], int]]:
        """
        Every whole line from ``offset`` on, and where each of them ends.

        Args:
            offset: Where a line ended, or 0.

        Raises:
            LedgerError: As `read`; or the file is shorter than that.
        """
        found = []
        for line in self._lines(offset):
            record = self._decode(line, f"at byte {offset}")
            offset += len(line) + 1
            found.append((record, offset))
        return found

    def _lines(self, offset: int) -> list[bytes]:
        try:
            with self.path.open("rb") as file:
                if file.seek(0, 2) < offset:
                    raise LedgerError(f"{self.path} has lost what lay before byte {offset}; it is another file now")
                file.seek(offset)
                return file.read().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise LedgerError(f"cannot read {self.path}: {error.strerror}; repair the disk or remove it") from error

    def _decode(self, line: bytes, where: str) -> dict[str, Any]:
        try:
            return msgspec.json.decode(line, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LedgerError(f"{self.path} {where} is not a JSON object: {error}; repair or remove it") from error


def _take_away_torn_line(file: BinaryIO) -> int:
    """Returns the bytes it had."""
    end = file.seek(0, 2)
    if not end:
        return 0
    file.seek(end - 1)
    if file.read(1) == b"\n":
        return 0
    file.seek(0)
    return end - file.truncate(file.read().rfind(b"\n") + 1)
