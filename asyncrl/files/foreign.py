"""
Files that others wrote, read with limits: run files, models, tokenizers, datasets, pictures.

    path ─ a regular file? ─ small enough? ─▶ bytes ─▶ text, JSON, TOML ─ nested no deeper, no longer numbers? ─▶ value

Whoever wrote a file may be careless or hostile, so no file costs more memory than its limit allows, none is waited for,
and each refusal is one sentence, a `DataError`. What a file claims about its size is not believed.
"""

import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from asyncrl.errors import DataError
from asyncrl.foreign_text import shown

T = TypeVar("T")

MAX_BYTES = 4 << 20
"""Longest file of settings."""
MAX_DEPTH = 64
"""Most levels of lists and tables in one another, and most parts of a dotted key."""
MAX_TABLES = 1 << 20
"""Most lists and objects of a text in JSON, each of which takes 64 bytes; Gemma 3's tokenizer has half as many."""
MAX_BITS = 128
"""Most bits of a whole number in JSON, where many tokenizers have 10**30. Python refuses to print 4300 digits."""
TOML_BITS = 63
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a link",
}
"""Names of what a path may be instead of a regular file."""


class NoSuchFile(DataError):
    """A file that somebody named is not there."""


# ── bytes ─────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def opened(path: Path, what: str = "", *, follow: bool = True) -> Iterator[BufferedReader]:
    """
    Open a regular file, and wait for no pipe or device.

    Args:
        what: Name of the file in messages, made fit for a terminal; the path if it is empty.
        follow: Follow the last link of the path.

    Raises:
        NoSuchFile: The file is missing.
        DataError: It cannot be opened or read, or is no regular file.
    """
    what = what or shown(str(path))
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    with _readable(what):
        _require_regular(path.stat(follow_symlinks=follow).st_mode, what)  # to open a device may already act on it
        descriptor = os.open(path, flags)
    with os.fdopen(descriptor, "rb") as file:
        _require_regular(os.fstat(descriptor).st_mode, what)  # it may be another one by now
        yield file


@contextmanager
def _readable(what: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise NoSuchFile(f"{what} cannot be read: there is no such file") from error
    except OSError as error:
        raise DataError(f"{what} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a NUL byte, or what no file system encodes
        raise DataError(f"{what} cannot be read: that is no path of a file") from error


def read_bytes(path: Path, limit: int = MAX_BYTES, what: str = "", *, follow: bool = True) -> bytes:
    """Bytes of a file with at most ``limit`` of them. Raises as `opened`, and `DataError` if it has more."""
    what = what or shown(str(path))
    with opened(path, what, follow=follow) as file, _readable(what):
        size = os.fstat(file.fileno()).st_size
        content = (size <= limit and file.read(limit + 1)) or b""  # nothing yet of a file of the kernel is None
    if max(size, len(content)) > limit:
        raise DataError(f"{what} is too large: the limit is {limit:,} bytes; make it smaller")
    return content


def _require_regular(mode: int, what: str) -> None:
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "something else")
        raise DataError(f"{what} cannot be read: it is {kind}, expected a regular file")


CACHES = {"snapshots": "blobs", "folders": "files"}
"""
Folders of a cache whose files are links, and where these lead: of the Hub, ``models--OWNER--NAME/snapshots/COMMIT`` and
``models--OWNER--NAME/blobs``, and of what `asyncrl.wire.files` fetches.
"""


def within(folder: Path, name: str) -> Path:
    """
    Path of a file that a folder has, by its name; links may lead about in the folder, or to the files of a cache that
    has such folders: `CACHES`.

    Raises:
        DataError: The name, or a link, leads out of the folder.
    """
    path, home = folder / name, Path(os.path.realpath(folder))
    allowed = {home, *(home.parents[1] / files for folders, files in CACHES.items() if home.parent.name == folders)}
    with _readable(shown(str(path))):
        found = Path(os.path.realpath(path))
    if ".." in Path(name).parts or allowed.isdisjoint(found.parents):
        raise DataError(
            f"{shown(str(path))} leads out of the folder {shown(str(folder))}, to {shown(str(found))}: expected a file "
            f"in it; copy the file there"
        )
    return path


# ── values ────────────────────────────────────────────────────────────────────────────────────


def read_text(path: Path, limit: int = MAX_BYTES, what: str = "") -> str:
    """Text of a file in UTF-8, with a byte order mark or without. Raises as `read_bytes`."""
    content = read_bytes(path, limit, what)
    return parsed(lambda: content.decode("utf-8-sig"), what or shown(str(path)), "text in UTF-8", "save it as UTF-8")


def read_json(path: Path, kind: type[T], limit: int = MAX_BYTES, remedy: str = "") -> T:
    """A file's JSON as ``kind``; ``remedy`` ends the sentence about another form. Raises as `read_bytes`."""
    return parse_json(read_bytes(path, limit), kind, shown(str(path)), remedy)


def parse_json(
    content: bytes | str, kind: type[T], what: str, remedy: str = "", decode: Callable[[Any], Any] | None = None
) -> T:
    """
    JSON as ``kind``; ``decode`` replaces msgspec's function.

    Raises `DataError`, which names it ``what``, for other text and for values beyond the limits.
    """
    opening: Any = ("[", "{") if isinstance(content, str) else (b"[", b"{")
    if sum(map(content.count, opening)) > MAX_TABLES:
        raise DataError(f"{what} has more than {MAX_TABLES:,} lists and objects; shorten it")
    decode = decode or (lambda text: msgspec.json.decode(text, type=kind))
    return parsed(lambda: decode(content), what, "a JSON object", remedy)


def parse_toml(text: str, what: str) -> dict[str, Any]:
    """TOML as a nested dict. Raises `DataError`, which names it ``what``, for other text and beyond the limits."""
    for run in KEYS.finditer(text):
        require_parts(len(PART.findall(run["key"] or "")), what)
    return parsed(lambda: tomllib.loads(text), what, "TOML", max_bits=TOML_BITS)


def require_parts(count: int, what: str) -> None:
    """Raise `DataError` for a dotted key of too many parts: each takes memory for all before it."""
    if count > MAX_DEPTH:
        raise DataError(f"{what} has a key of {count:,} parts: expected at most {MAX_DEPTH}; shorten it")


def parsed(parse: Callable[[], T], what: str, form: str, remedy: str = "", max_bits: int = MAX_BITS) -> T:
    """
    Value that ``parse`` returns: the one place that judges form, depth and numbers of a text.

    Raises `DataError`, which names it ``what``, if it raises, or the value is beyond the limits.
    """
    try:
        found = parse()
    except RecursionError as error:
        raise _too_deep(what) from error
    except ValueError as error:  # of msgspec, tomllib, UTF-8, and a number with more digits than Python reads
        raise DataError(f"{what} is not {form}: {shown(str(error))}{remedy and f'; {remedy}'}") from error
    level: list[Any] = [found]
    for _ in range(MAX_DEPTH):
        for number in level:
            if isinstance(number, int) and (bits := max(number, ~number).bit_length()) > max_bits:
                raise DataError(f"{what} has a whole number of {bits:,} bits: expected at most {max_bits}")
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return found
    raise _too_deep(what)


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value


def _too_deep(what: str) -> DataError:
    return DataError(f"{what} is nested too deeply: expected at most {MAX_DEPTH} levels; flatten it")


PART = re.compile(r"""[A-Za-z0-9_-]++|"(?:\\[^\n]|[^"\\\n])*+"|'[^'\n]*+'""")
"""A part of a dotted key in TOML."""
KEYS = re.compile(
    r'"""(?:\\.|[^\\])*?(?:"""|\Z)' + r"|'{3}.*?(?:'{3}|\Z)|#[^\n]*+"  # dots mean nothing in them
    rf"|(?P<key>(?:{PART.pattern})(?:[ \t]*+\.[ \t]*+(?:{PART.pattern}))*+)"
    r"""|["'][^\n]*+""",  # not closed: what is behind it is not looked at again
    re.DOTALL,
)
"""Texts and comments, and what may be a dotted key between them. Linear in any text: it passes all that it looks at."""
