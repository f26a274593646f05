"""What every ledger has from its first moment."""

import sqlite3
from pathlib import Path

import pytest

from asyncrl.broker.ledger_file import APPLICATION_ID, open_readable, open_writable, read_meta


def test_a_new_ledger_says_whose_it_is_and_of_which_run(tmp_path: Path) -> None:
    connection = open_writable(tmp_path / "a" / "ledger.sqlite")
    other = open_writable(tmp_path / "b" / "ledger.sqlite")

    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    assert read_meta(connection, "schema_version") == 1
    assert read_meta(connection, "broker_epoch") == 0
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
