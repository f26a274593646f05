"""Creation and verification of the ledger file."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncrl.broker.ledger.database import (
    APPLICATION_ID,
    SCHEMA_VERSION,
    open_readable,
    open_writable,
    read_meta,
    write_meta,
)
from asyncrl.errors import LedgerError


def test_a_new_ledger_has_an_application_id_and_a_run_id(tmp_path: Path) -> None:
    connection = open_writable(tmp_path / "a" / "ledger.sqlite")
    other = open_writable(tmp_path / "b" / "ledger.sqlite")

    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    assert read_meta(connection, "schema_version") == SCHEMA_VERSION
    assert read_meta(connection, "broker_term") == 0
    assert read_meta(connection, "run_id") != read_meta(other, "run_id")
    connection.close()
    other.close()


def test_commits_are_on_disk_when_they_return(tmp_path: Path) -> None:
    connection = open_writable(tmp_path / "ledger.sqlite")

    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    connection.close()


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    open_writable(tmp_path / "ledger.sqlite").close()
    connection = open_readable(tmp_path / "ledger.sqlite")

    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM meta")

    connection.close()


@pytest.mark.parametrize("open_it", [open_writable, open_readable])
@pytest.mark.parametrize("change", ["broker_term", "run_id"])
def test_the_meta_table_has_a_checksum(
    tmp_path: Path, open_it: Callable[[Path], sqlite3.Connection], change: str
) -> None:
    path = tmp_path / "ledger.sqlite"
    connection = open_writable(path)
    write_meta(connection, "broker_term", 7)
    connection.execute("UPDATE meta SET value = 3 WHERE key = ?", (change,))
    connection.close()

    with pytest.raises(LedgerError, match="the checksum of its meta does not match; restore it"):
        open_it(path)


def test_a_ledger_without_that_checksum_is_used(tmp_path: Path) -> None:
    connection = open_writable(tmp_path / "ledger.sqlite")
    connection.execute("DELETE FROM meta WHERE key = 'crc32'")
    connection.close()

    open_writable(tmp_path / "ledger.sqlite").close()


def test_an_index_that_does_not_fit_its_table_is_refused(tmp_path: Path) -> None:
    """The index is not read here, but it keeps a group from being trained twice."""
    path = tmp_path / "ledger.sqlite"
    connection = open_writable(path)
    connection.execute("INSERT INTO records VALUES (1, 'Admitted', 'admitted/0', x'00', 0, NULL)")
    connection.close()
    path.write_bytes(path.read_bytes().replace(b"admitted/0", b"admitted/1", 1))

    with pytest.raises(LedgerError, match=r"the ledger .* is damaged: .*index"):
        open_writable(path)


def test_an_emptied_ledger_with_a_log_is_not_recreated(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.touch()
    path.with_name("ledger.sqlite-wal").write_bytes(b"records")

    with pytest.raises(LedgerError, match=r"missing or empty, but its log .*-wal is there; restore"):
        open_writable(path)
    assert path.with_name("ledger.sqlite-wal").read_bytes() == b"records"
