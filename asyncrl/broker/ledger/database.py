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
import sqlite3
import uuid
import zlib
from pathlib import Path

from asyncrl.broker.ledger.lock_wait import TRY_S
from asyncrl.broker.ledger.wal import check_wal
from asyncrl.errors import LedgerError
from asyncrl.files.disk import REMEDY, cause

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
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
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
