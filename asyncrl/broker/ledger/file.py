"""
What a ledger is on disk: a SQLite database with the records of one run, in the order they were made.

    records   seq │ kind │ key (unique, or NULL) │ body (msgpack) │ crc32 of body
    retired   group_id (unique) │ how ("taken/17" or "dropped")
    meta      run_id │ broker_term │ schema_version │ crc32 of these

The unique columns are the second line of defence: the broker's rules never count anything twice, and if they did,
the database would refuse.

Before a database is used, its log is looked at, and every page and index of it: SQLite itself would go on with what is
left of a damaged one.
"""

import sqlite3
import uuid
import zlib
from pathlib import Path

from asyncrl.broker.ledger.tail import examine
from asyncrl.errors import LedgerError

APPLICATION_ID = 0x61726C31
"""``arl1``, in the place SQLite reserves for saying whose file it is."""
SCHEMA_VERSION = 1

UNREADABLE = (sqlite3.Error, UnicodeDecodeError)
"""What a damaged file raises; the second if SQLite's own words quote bytes that are no text."""

TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE records (
    seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, key TEXT UNIQUE, body BLOB NOT NULL, crc32 INTEGER NOT NULL
);
CREATE TABLE retired (group_id INTEGER PRIMARY KEY, how TEXT NOT NULL);
"""


def open_writable(path: Path) -> sqlite3.Connection:
    """
    The ledger at ``path``, made if there is none. Commits are on disk when they return.

    Raises:
        LedgerError: It cannot be opened, is damaged, is not a ledger, or is one of another schema version.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not _is_new(path):
            open_readable(path).close()  # Which, unlike a writer, leaves a damaged one as it is.
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise LedgerError(f"cannot open the ledger {path}: {error}") from error
    try:
        if _is_blank(connection):
            _create(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        # A new round of the log: what is left of a torn tail is not met again.
        connection.execute("PRAGMA wal_checkpoint(RESTART)")
    except sqlite3.Error as error:
        connection.close()
        raise LedgerError(
            f"cannot use the ledger {path}: {error}; free space or repair the disk, then start again"
        ) from error
    return connection


def open_readable(path: Path, *, is_ours: bool = False) -> sqlite3.Connection:
    """
    The ledger at ``path``, to look at, also while a broker writes it.

    Args:
        is_ours: This process has it open for writing, and looked at its log before. It must not do so again: locks on
            files belong to the process, and closing one of them would drop those of the writer. The next reader would
            then take itself for the only user, and cut the index under it (sqlite.org/howtocorrupt.html, 2.2).

    Raises:
        LedgerError: As `open_writable`, and if there is none.
    """
    if not path.is_file():
        raise LedgerError(f"there is no ledger at {path}")
    if not is_ours:
        examine(path)
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    except sqlite3.Error as error:
        raise LedgerError(f"{path} cannot be read as a ledger: {error}") from error
    connection.text_factory = _text
    try:
        verify(connection, path)
    except UNREADABLE as error:
        connection.close()
        raise LedgerError(f"{path} cannot be read as a ledger: {one_line(error)}") from error
    except LedgerError:
        connection.close()
        raise
    return connection


def verify(connection: sqlite3.Connection, path: Path) -> None:
    """Raises LedgerError if this is not an undamaged ledger that this asyncrl can use."""
    if connection.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
        raise LedgerError(f"{path} is a database, but not an asyncrl ledger; choose another run directory")
    (finding,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if finding != "ok":
        raise LedgerError(f"the ledger {path} is damaged: {one_line(finding)}; restore it from a copy")
    version = read_meta(connection, "schema_version")
    if version != SCHEMA_VERSION:
        raise LedgerError(f"{path} has ledger schema {version}, this asyncrl uses {SCHEMA_VERSION}; start a new run")
    if read_meta(connection, "crc32") not in (_sum_of_meta(connection), None):  # None: made before there was one.
        raise LedgerError(
            f"the ledger {path} is damaged: the checksum of its meta does not fit; restore it from a copy"
        )


def read_meta(connection: sqlite3.Connection, key: str) -> int | str | None:
    """A value of ``meta``."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return row[0] if row else None


def write_meta(connection: sqlite3.Connection, key: str, value: int | str) -> None:
    """Set a value of ``meta``, inside a transaction."""
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('crc32', ?)", (_sum_of_meta(connection),))


def _sum_of_meta(connection: sqlite3.Connection) -> int:
    rows = connection.execute("SELECT key, value FROM meta WHERE key != 'crc32' ORDER BY key").fetchall()
    return zlib.crc32(repr(rows).encode())


def _is_new(path: Path) -> bool:
    """
    Is nothing there yet?

    Raises:
        LedgerError: Something was.
    """
    if path.exists() and path.stat().st_size:
        return False
    if (log := path.with_name(f"{path.name}-wal")).exists():
        raise LedgerError(f"the ledger {path} is missing or empty, but its log {log} is there; restore it from a copy")
    return True


def _text(raw: bytes) -> str:
    """Of a damaged page, too: what is wrong with it shows when it is compared."""
    return raw.decode(errors="replace")


def one_line(finding: object) -> str:
    """SQLite's words, which may quote what is damaged."""
    return "; ".join(str(finding).strip().splitlines())


def _is_blank(connection: sqlite3.Connection) -> bool:
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    return int(tables) == 0


def _create(connection: sqlite3.Connection) -> None:
    """All tables or none."""
    connection.execute("BEGIN IMMEDIATE")
    for statement in filter(str.strip, TABLES.split(";")):
        connection.execute(statement)
    write_meta(connection, "schema_version", SCHEMA_VERSION)
    write_meta(connection, "run_id", uuid.uuid4().hex)
    write_meta(connection, "broker_term", 0)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("COMMIT")
