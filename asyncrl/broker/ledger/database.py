"""
The ledger file: a SQLite database with the records of one run, in order.

    records   seq │ kind │ key (unique, or NULL) │ body (msgpack) │ crc32 of body │ head (`chain`, or NULL)
    retired   group_id (unique) │ how ("taken/17" or "dropped")
    meta      run_id │ broker_term │ schema_version │ config │ digests of the prompts │ num_headless │ crc32 of these

The broker's rules never count anything twice; the unique columns are a second check that would refuse it.

Opening checks the write-ahead log and every page and index first, because SQLite itself would go on with the readable
rest of a damaged database.
"""

import hashlib
import os
import sqlite3
import struct
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from asyncrl.errors import LedgerError
from asyncrl.files.atomic import REMEDY, TornTail, cause

# ── wal ───────────────────────────────────────────────────────────────────────────────────────
# Check of a ledger's SQLite write-ahead log before SQLite opens it and silently drops the part it cannot use.
#
#     ledger.sqlite-wal    header 32 B   magic │ version │ page size │ checkpoint number │ salts 8 B │ checksum 8 B
#                        frame         page number │ database size in pages, or 0 │ salts 8 B │ checksum 8 B │ the page
#                          frame         ...                              └ not 0: the frame commits a transaction
#                          frames left over from before the last log restart, with other salts
#     ledger.sqlite-shm    the WAL index: number of committed frames, as far as the last process knew
#
# A checksum covers all earlier frames too, so the log ends at the first checksum that does not match. The bytes after
# it are a torn tail if they can belong to a single transaction: its fsync had not returned, so no caller relied on
# it. They are damage to durable records if a second transaction follows, which starts only after that fsync, or if
# the WAL index counts them as committed.
#
# Source: sqlite.org/walformat.html

HEADER = struct.Struct(">4I8s8s")
FRAME = struct.Struct(">2I8s8s")
ORDERS = {0x377F0682: "<", 0x377F0683: ">"}
"""Byte order of the checksummed words, by magic number."""
INDEX = struct.Struct("=4x4x4xBBxxI4x8x8s8s")
INDEX_CHECKED_BYTES = 40
BACKFILLED_AT = 96
Sums = tuple[int, int]


class _Index(NamedTuple):
    """Contents of the WAL index."""

    salts: bytes
    num_frames: int
    num_backfilled: int
    """Frames already copied into the database."""


def check_wal(ledger: Path) -> TornTail | None:
    """
    Check the log of ``ledger`` without changing it, also while its broker writes.

    Returns:
        The torn tail that SQLite will ignore; None if there is none.

    Raises:
        LedgerError: Committed records are damaged or missing; names the file and the offset.
    """
    path, index_path = (ledger.with_name(ledger.name + suffix) for suffix in ("-wal", "-shm"))
    try:
        index = _read_index(index_path)  # Read before the log, which may grow in between.
        log = _read(path)
        if len(log) < HEADER.size:
            index = _read_index(index_path)  # Read after the log: a log may vanish in between.
    except OSError as error:
        raise LedgerError(f"cannot read {error.filename}: {error.strerror}") from error
    if len(log) < HEADER.size:
        if index and index.num_frames > index.num_backfilled:
            raise _damage(path, 0, f"it has {len(log)} bytes, expected {index.num_frames} pages of records")
        return TornTail(path, 0, len(log)) if log else None
    return _check_log(path, log, index)


def _check_log(path: Path, log: bytes, index: _Index | None) -> TornTail | None:
    magic, _, page_bytes, _, salts, check = HEADER.unpack_from(log)
    order = ORDERS.get(magic)
    if order is None or struct.pack(">2I", *(sums := _checksum(log[: HEADER.size - 8], (0, 0), order))) != check:
        raise _damage(path, 0, "its header does not match its checksum")
    frame_bytes = FRAME.size + page_bytes
    valid, committed = _valid_frames(log, frame_bytes, salts, sums, order)
    end = HEADER.size + committed * frame_bytes
    if index and index.salts == salts and index.num_frames > committed:
        raise _damage(path, end, f"{committed} of {index.num_frames} committed pages can be read")
    following = _current_frames(log, HEADER.size + valid * frame_bytes, frame_bytes, salts)
    if any(following) and any(True for _ in following):
        raise _damage(path, HEADER.size + valid * frame_bytes, "committed pages follow that cannot be read")
    is_torn = (len(log) - HEADER.size) % frame_bytes or any(True for _ in _current_frames(log, end, frame_bytes, salts))
    return TornTail(path, end, len(log) - end) if is_torn else None


def _valid_frames(log: bytes, frame_bytes: int, salts: bytes, sums: Sums, order: str) -> tuple[int, int]:
    """Number of leading frames with matching checksums, and number of those that are committed."""
    valid = committed = 0
    for start in range(HEADER.size, len(log) - frame_bytes + 1, frame_bytes):
        _, commits, frame_salts, check = FRAME.unpack_from(log, start)
        sums = _checksum(log[start : start + 8], sums, order)
        sums = _checksum(log[start + FRAME.size : start + frame_bytes], sums, order)
        if frame_salts != salts or struct.pack(">2I", *sums) != check:
            break
        valid += 1
        committed = valid if commits else committed
    return valid, committed


def _current_frames(log: bytes, start: int, frame_bytes: int, salts: bytes) -> Iterator[bool]:
    """For each frame from ``start`` on that was written since the last log restart: True if it commits."""
    for at in range(start, len(log) - FRAME.size + 1, frame_bytes):
        _, commits, frame_salts, _ = FRAME.unpack_from(log, at)
        if frame_salts[:4] == salts[:4] or frame_salts[4:] == salts[4:]:  # A restart changes both salts.
            yield commits > 0


def _checksum(data: bytes, sums: Sums, order: str) -> Sums:
    """SQLite's checksum of pairs of 32-bit words, continued from ``sums``."""
    first, second = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second


def _read(path: Path) -> bytes:
    """Consistent copy of the log: a restart of the log during the read changes its header, so the read is repeated."""
    while True:
        try:
            log = path.read_bytes()
            with path.open("rb") as file:
                if file.read(HEADER.size) == log[: HEADER.size]:
                    return log
        except FileNotFoundError:
            return b""


def _read_index(path: Path) -> _Index | None:
    """The WAL index; None if it is missing, not initialized or does not match its checksum."""
    try:
        with path.open("rb") as file:
            raw = file.read(BACKFILLED_AT + 4)
    except FileNotFoundError:
        return None
    if len(raw) < BACKFILLED_AT + 4:
        return None
    is_initialized, _, num_frames, salts, check = INDEX.unpack_from(raw)
    sums = _checksum(raw[:INDEX_CHECKED_BYTES], (0, 0), "=")
    if (
        not is_initialized
        or raw[: INDEX.size] != raw[INDEX.size : 2 * INDEX.size]
        or struct.pack("=2I", *sums) != check
    ):
        return None
    (num_backfilled,) = struct.unpack_from("=I", raw, BACKFILLED_AT)
    return _Index(salts, num_frames, num_backfilled)


def _damage(path: Path, offset: int, what: str) -> LedgerError:
    return LedgerError(
        f"{path} is damaged at offset {offset}, in what was already on disk: {what}; "
        f"restore the ledger's files from a copy, or start a new run"
    )


# ── lock wait ─────────────────────────────────────────────────────────────────────────────────
# Waiting for another program's lock on the ledger, such as that of `sqlite3` with an open transaction.
#
#     locked ─▶ the same transaction again, for as long as it takes ─▶ written
#           └─▶ once the ledger is being left: a few seconds more ─▶ the error
#
# A lock loses nothing: what is not written is not acknowledged, so the nodes' credits run out and the run stands
# still until the lock is gone. Readers of the ledger take no such lock.

Done = TypeVar("Done")

TRY_S = 0.2
"""Time for which SQLite itself waits for a lock, in small steps, before it gives up a transaction."""
PAUSE_S = 0.05
"""Pause before the next one: SQLite refuses some locks without waiting."""
LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL)
WRITER, RECOVERY = 120, 122
"""First and last byte of the WAL index that a writer locks (sqlite.org/walformat.html)."""


class LockWait:
    """
    One ledger's waits. `retry` belongs to the thread that uses the ledger, all else to any thread.

    Args:
        clock: Gives monotonic seconds.
        sleep: Blocks the thread.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._since_s: float | None = None
        self._until_s = float("inf")
        self.has_given_up = False
        """True once a transaction was given up because of a lock."""

    @property
    def waited_s(self) -> float:
        """Seconds for which the present lock has been waited for; 0 without one."""
        return 0.0 if (since_s := self._since_s) is None else self._clock() - since_s

    def leave(self, within_s: float) -> None:
        """Wait for ``within_s`` seconds more at most; an earlier, shorter limit stays."""
        self._until_s = min(self._until_s, self._clock() + within_s)

    def retry(self, attempt: Callable[[], Done]) -> Done:
        """Call ``attempt`` again and again while the ledger is locked. Raises as ``attempt``."""
        try:
            while True:
                try:
                    return attempt()
                except Exception as error:
                    if not is_lock(error):
                        raise
                    self._since_s = self._clock() if self._since_s is None else self._since_s
                    if self._clock() >= self._until_s:
                        self.has_given_up = True
                        raise
                self._sleep(PAUSE_S)
        finally:
            self._since_s = None


def is_lock(error: BaseException | None) -> bool:
    """True for an error of SQLite, or one raised from it, that says that another program has locked the database."""
    while error is not None and not isinstance(error, sqlite3.Error):
        error = error.__cause__
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in LOCKED


def holder(ledger: Path, locks: Path = Path("/proc/locks")) -> str:
    """Process that has locked the ledger, in words; "another program" if the kernel does not tell."""
    try:
        index = ledger.with_name(f"{ledger.name}-shm").stat().st_ino
        lines = locks.read_text().splitlines()
    except OSError:
        return "another program"
    for line in lines:
        # 7: POSIX  ADVISORY  WRITE 4711 08:01:131 120 120
        fields = line.split()
        if len(fields) != 8 or not fields[4].isdecimal() or int(fields[5].rpartition(":")[2]) != index:
            continue
        first, last = int(fields[6]), WRITER if fields[7] == "EOF" else int(fields[7])
        if first <= RECOVERY and last >= WRITER and int(fields[4]) not in (0, os.getpid()):
            return f"process {fields[4]}{_name(fields[4])}"
    return "another program"


def _name(process: str) -> str:
    try:
        return f" ({Path('/proc', process, 'comm').read_text().strip()})"
    except OSError:
        return ""


# ── database ──────────────────────────────────────────────────────────────────────────────────

APPLICATION_ID = 0x61726C31
"""``arl1``, in SQLite's header field for the application that owns a file."""
SCHEMA_VERSION = 4
HEADLESS = 3
"""Schema version of an earlier asyncrl, whose records have no column ``head``. A broker that opens one adds it."""
CHAIN_ID = "chain_id"
"""Key of the identity that the digests of records began with, if the run has another one by now: it is a copy."""
NUM_HEADLESS = "num_headless"
"""Key in ``meta`` of the number of records that were written without heads."""

DIGESTS = ("train_digest", "held_out_digest")
"""Keys in ``meta`` of the digests of the prompts that a run began with."""
CONFIG = "config"
"""Key in ``meta`` of the configuration, as JSON."""

READ_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""Errors of reading a damaged file; the second when SQLite's message quotes bytes that are not text."""

TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE records (
    seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, key TEXT UNIQUE, body BLOB NOT NULL, crc32 INTEGER NOT NULL,
    head BLOB
);
CREATE TABLE retired (group_id INTEGER PRIMARY KEY, how TEXT NOT NULL);
"""


def open_writable(path: Path) -> sqlite3.Connection:
    """Open or create the ledger at ``path`` for writing. A commit is on disk when it returns. Raises as `verify`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not _is_new(path):
            open_readable(path).close()  # A reader leaves a damaged file as it is; a writer would change it.
        connection = sqlite3.connect(path, TRY_S, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise LedgerError(f"cannot open the ledger {path}: {error}") from error
    try:
        if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,):
            _create(connection)
        if read_meta(connection, "schema_version") == HEADLESS:
            _add_heads(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        # Restarts the log, so that the rest of a torn tail is not found again.
        connection.execute("PRAGMA wal_checkpoint(RESTART)")
    except sqlite3.Error as error:
        connection.close()
        raise LedgerError(f"cannot use the ledger {path}: {cause(path, error)}; {REMEDY}") from error
    return connection


def open_readable(path: Path, *, is_writer_process: bool = False) -> sqlite3.Connection:
    """
    Open the ledger at ``path`` for reading, also while a broker writes it.

    Args:
        is_writer_process: This process has the ledger open for writing and has checked its log already. The log is not
            checked again: file locks belong to the process, and closing the log file would release those of the
            writer. The next reader would then think it is the only user and truncate the shared index
            (sqlite.org/howtocorrupt.html, 2.2).

    Raises:
        LedgerError: The file does not exist or cannot be opened, or as `verify`.
    """
    if not path.is_file():
        raise LedgerError(f"there is no ledger at {path}")
    if not is_writer_process:
        check_wal(path)
    try:
        connection = connect_readable(path)
    except sqlite3.Error as error:
        raise LedgerError(f"{path} cannot be read as a ledger: {error}") from error
    # Damaged text must not fail to decode: the damage shows when the value is compared.
    connection.text_factory = lambda raw: raw.decode(errors="replace")
    try:
        verify(connection, path)
    except (LedgerError, *READ_ERRORS) as error:
        connection.close()
        if isinstance(error, LedgerError):
            raise
        raise LedgerError(f"{path} cannot be read as a ledger: {one_line(error)}") from error
    return connection


def connect_readable(path: Path) -> sqlite3.Connection:
    """
    Connection to a ledger that changes nothing in it, and leaves no file beside it that was not there.

    SQLite makes an empty log and its index for a ledger that nobody has open, and only a connection that might write
    removes them when it closes. One with a log stays as it is: such a connection would also empty the log.
    """
    is_ours = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    mode = "rw" if is_ours and not path.with_name(f"{path.name}-wal").exists() else "ro"
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None)
    connection.execute("PRAGMA query_only = 1")
    return connection


def verify(connection: sqlite3.Connection, path: Path) -> None:
    """Raise LedgerError unless this is an undamaged ledger of this schema version."""
    if connection.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
        raise LedgerError(f"{path} is a database, but not an asyncrl ledger; choose another run directory")
    (finding,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if finding != "ok":
        raise LedgerError(f"the ledger {path} is damaged: {one_line(finding)}; restore it from a copy")
    connection.execute("SELECT seq, kind, key, body, crc32 FROM records LIMIT 0")  # A damaged schema has other names.
    version = read_meta(connection, "schema_version")
    if version == SCHEMA_VERSION:
        connection.execute("SELECT head FROM records LIMIT 0")
    elif version != HEADLESS:
        raise LedgerError(f"{path} has ledger schema {version}, this asyncrl uses {SCHEMA_VERSION}; start a new run")
    if read_meta(connection, "crc32") not in (_meta_crc32(connection), None):  # None: written by an older asyncrl.
        raise LedgerError(
            f"the ledger {path} is damaged: the checksum of its meta does not match; restore it from a copy"
        )


def read_meta(connection: sqlite3.Connection, key: str) -> int | str | None:
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return row[0] if row else None


def write_meta(connection: sqlite3.Connection, key: str, value: int | str) -> None:
    """Set a value of ``meta``; the caller has a transaction open."""
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('crc32', ?)", (_meta_crc32(connection),))


def one_line(finding: object) -> str:
    """A message of SQLite on one line; it may quote damaged text."""
    return "; ".join(str(finding).strip().splitlines())


def meta_digest(connection: sqlite3.Connection) -> str:
    """SHA-256 of the facts in ``meta`` that are the same for every broker: all but its term and the checksum."""
    return hashlib.sha256(_meta_text(connection, "broker_term")).hexdigest()


def _meta_crc32(connection: sqlite3.Connection) -> int:
    return zlib.crc32(_meta_text(connection))


def _meta_text(connection: sqlite3.Connection, without: str = "") -> bytes:
    rows = connection.execute("SELECT key, value FROM meta WHERE key NOT IN ('crc32', ?) ORDER BY key", (without,))
    return repr(rows.fetchall()).encode()


def _is_new(path: Path) -> bool:
    """True if there is no ledger yet. Raises LedgerError if the database is gone but its log is there."""
    if path.exists() and path.stat().st_size:
        return False
    if (log := path.with_name(f"{path.name}-wal")).exists():
        raise LedgerError(f"the ledger {path} is missing or empty, but its log {log} is there; restore it from a copy")
    return True


def _add_heads(connection: sqlite3.Connection) -> None:
    """Bring a ledger of an earlier asyncrl to this schema; its digest covers the records that there are by now."""
    connection.execute("BEGIN IMMEDIATE")
    if read_meta(connection, "schema_version") == HEADLESS:  # No other broker has done so meanwhile.
        connection.execute("ALTER TABLE records ADD COLUMN head BLOB")
        write_meta(connection, NUM_HEADLESS, connection.execute("SELECT count(*) FROM records").fetchone()[0])
        write_meta(connection, "schema_version", SCHEMA_VERSION)
    connection.execute("COMMIT")


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for statement in filter(str.strip, TABLES.split(";")):
        connection.execute(statement)
    write_meta(connection, "schema_version", SCHEMA_VERSION)
    write_meta(connection, "run_id", uuid.uuid4().hex)
    write_meta(connection, "broker_term", 0)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("COMMIT")
