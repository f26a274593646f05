"""Reads a ledger: for a restarting broker, for `asyncrl audit` and for people."""

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from asyncrl.broker.ledger.database import DIGESTS, READ_ERRORS, one_line, open_readable, read_meta
from asyncrl.broker.ledger.records import AnyRecord, decode, unique_key
from asyncrl.errors import LedgerError

REMEDY = "restore the ledger from a copy, or start a new run"


def read_records(path: Path, *, is_writer_process: bool = False) -> Iterator[AnyRecord]:
    """
    Yield a run's records in the order they were written, also while its broker writes further ones.

    Args:
        is_writer_process: This process also has the ledger open for writing.

    Raises:
        LedgerError: There is no ledger at ``path``, this asyncrl cannot read it, or a record is damaged or missing;
            names the record.
    """
    with closing(open_readable(path, is_writer_process=is_writer_process)) as connection:
        try:
            rows = connection.execute("SELECT seq, kind, key, body, crc32 FROM records ORDER BY seq")
            for expected, (seq, *row) in enumerate(rows, start=1):
                if seq != expected:
                    raise LedgerError(f"the ledger {path} is damaged: record {expected} is missing; {REMEDY}")
                yield _decoded(f"record {seq} of the ledger {path}", *row)
        except READ_ERRORS as error:
            raise LedgerError(f"the ledger {path} is damaged: {one_line(error)}; {REMEDY}") from error


class LedgerMeta(NamedTuple):
    """Contents of a ledger beside its records."""

    run_id: str
    broker_term: int
    """Number of broker starts."""
    train_digest: str
    """Digest of the training prompts that the run began with; empty if none was recorded."""
    held_out_digest: str


def read_ledger_meta(path: Path) -> LedgerMeta:
    """Read what is stored beside the records. Raises `LedgerError` as `read_records`."""
    with closing(open_readable(path)) as connection:
        run_id, term, *digests = (read_meta(connection, key) for key in ("run_id", "broker_term", *DIGESTS))
        return LedgerMeta(str(run_id), int(term or 0), *(str(digest or "") for digest in digests))


def peek_meta(path: Path, key: str) -> str:
    """
    Fact of a ledger by its key, without the check of the whole file that `read_ledger_meta` makes.

    Empty if the ledger has none, or cannot be read. It may be open for writing in this process.
    """
    if not path.is_file():
        return ""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)) as found:
            return str(read_meta(found, key) or "")
    except READ_ERRORS:
        return ""


def _decoded(where: str, kind: object, key: object, body: Any, crc32: object) -> AnyRecord:
    """Check and decode a row. The types are loose because a damaged page may hold any value."""
    if not isinstance(body, bytes) or zlib.crc32(body) != crc32:
        raise LedgerError(f"{where} is damaged: its checksum does not match; {REMEDY}")
    try:
        record = decode(body)
    except LedgerError as error:
        raise LedgerError(f"{where} cannot be read: {error}; use the asyncrl that wrote it") from error
    if (kind, key) != (type(record).__name__, unique_key(record)):
        raise LedgerError(f"{where} is damaged: it is filed as {kind!r} {key!r}; {REMEDY}")
    return record
