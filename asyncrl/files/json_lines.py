"""
JSON lines files (one JSON object a line, appended to by one process, readable by any number meanwhile), and TOML text.

A line counts once its newline is written. Bytes after the last newline are a line being written, or one whose writer
died or ran out of disk space: readers skip them, and the next writer removes them before it appends.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from asyncrl.errors import LedgerError
from asyncrl.files.atomic import TornTail, needed


def encoded(record: Mapping[str, Any]) -> bytes:
    """A line without its newline; a record that was read back gives the same bytes."""
    return msgspec.json.encode(record)


class JsonLines:
    """One JSON lines file. Each call opens and closes it, so there is no handle to close."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: Mapping[str, Any]) -> None:
        """Append one line; NaN and infinities, which JSON lacks, become null. Raises `RunFailed` if that fails."""
        line = encoded(record) + b"\n"
        with needed(self.path), self.path.open("ab+") as file:
            _remove_torn_line(file)
            file.write(line)

    def cut(self) -> TornTail | None:
        """Remove an incomplete last line, if there is one. Raises `RunFailed` if that fails."""
        if not self.path.exists():
            return None
        with needed(self.path), self.path.open("rb+") as file:
            num_bytes = _remove_torn_line(file)
            return TornTail(self.path, file.seek(0, 2), num_bytes) if num_bytes else None

    def read(self) -> list[dict[str, Any]]:
        """
        Every complete line; an empty list if the file does not exist.

        Raises `LedgerError` if a complete line is not a JSON object, or the file cannot be read.
        """
        lines = self._lines(0)
        return [self._decode(line, f"line {number}") for number, line in enumerate(lines, start=1)]

    def since(self, offset: int) -> Iterator[tuple[dict[str, Any], int]]:
        """
        Yield each complete line from ``offset`` on (0 or the end of an earlier line) with the byte offset of its end.

        Raises `LedgerError` as `read`, and if the file is shorter than ``offset``.
        """
        for line in self._lines(offset):
            record = self._decode(line, f"at byte {offset}")
            offset += len(line) + 1
            yield record, offset

    def first(self) -> dict[str, Any] | None:
        """First line; None if there is no complete one. Raises as `read`."""
        try:
            with self.path.open("rb") as file:
                line = file.readline()
        except FileNotFoundError:
            return None
        return self._decode(line, "line 1") if line.endswith(b"\n") else None

    def last(self, num_bytes: int = 1 << 16) -> dict[str, Any] | None:
        """Last complete line; None without one, or if it is longer than ``num_bytes``. Raises as `read`."""
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return None
        lines = list(self._lines(max(size - num_bytes, 0)))
        is_whole = len(lines) > 1 or (lines and size <= num_bytes)
        return self._decode(lines[-1], "at its end") if is_whole else None

    def _lines(self, offset: int) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                if file.seek(0, 2) < offset:
                    raise LedgerError(
                        f"{self.path} has fewer than the {offset} bytes already read; it was replaced or cut short"
                    )
                file.seek(offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        return
                    yield line[:-1]
        except FileNotFoundError:
            return
        except OSError as error:
            raise LedgerError(f"cannot read {self.path}: {error.strerror}; repair the disk or remove it") from error

    def _decode(self, line: bytes, where: str) -> dict[str, Any]:
        try:
            return msgspec.json.decode(line, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LedgerError(f"{self.path} {where} is not a JSON object: {error}; repair or remove it") from error


def _remove_torn_line(file: BinaryIO) -> int:
    """Number of bytes removed."""
    end = file.seek(0, 2)
    if not end:
        return 0
    file.seek(end - 1)
    if file.read(1) == b"\n":
        return 0
    file.seek(0)
    return end - file.truncate(file.read().rfind(b"\n") + 1)


# ── toml text ─────────────────────────────────────────────────────────────────────────────────
# TOML text of keys and values.


def toml_value(value: Any) -> str:
    """Text of a value; a dict becomes an inline table."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{toml_key(key)} = {toml_value(item)}' for key, item in value.items())} }}"
    if isinstance(value, str):
        return _string(value)
    return repr(value)


def toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _string(key)


def _string(text: str) -> str:
    """Quoted string: JSON's escapes are valid TOML, but TOML also requires DEL to be escaped."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007F")
