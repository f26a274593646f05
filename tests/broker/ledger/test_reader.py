"""Reading a ledger, sound or damaged."""

import asyncio
import sqlite3
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.broker.ledger.reader import read_records
from asyncrl.broker.ledger.records import Admitted, Record, Result, Rewarded, Taken
from asyncrl.errors import LedgerError
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import TrajectorySummary, Unit

SUMMARY = TrajectorySummary(
    num_tokens=9, prompt_tokens=2, oldest_version=4, newest_version=5, num_spans=2, finish_reason="stop"
)


def result(unit: Unit) -> Result:
    return Result(unit, 1, SpoolRef("s0", 0, 16, 100, 7), SUMMARY)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    records: list[Record] = [
        Admitted(group_id=1, epoch=0, row=0, policy_version=0),
        *(result(Unit(1, index)) for index in (10, 9, 0)),
        result(Unit(10, 0)),
        result(Unit(1, 3, "held_out")),
        Rewarded(Unit(1, 9), 1.0),
        Taken(step=4, group_ids=[1]),
    ]

    async def write() -> None:
        ledger = Ledger(path)
        await ledger.commit(records)
        ledger.close()

    asyncio.run(write())
    return path


def test_records_come_in_the_order_they_were_written(path: Path) -> None:
    assert [type(record) for record in read_records(path)] == [Admitted, *[Result] * 5, Rewarded, Taken]


def test_a_damaged_record_is_named(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE records SET body = x'93' WHERE seq = 3")
    connection.close()

    with pytest.raises(LedgerError, match=r"record 3 of the ledger .* checksum"):
        list(read_records(path))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param("body = 3", r"record 3 of .* checksum does not match; restore", id="a number"),
        pytest.param("body = 'text'", r"record 3 of .* checksum does not match; restore", id="text"),
        pytest.param("crc32 = 'text'", r"record 3 of .* checksum does not match; restore", id="no checksum"),
        pytest.param("kind = 'Taken'", r"record 3 of .* is filed as 'Taken' 'result/train/1/9'", id="another kind"),
        pytest.param("key = 'taken/9'", r"record 3 of .* is filed as 'Result' 'taken/9'", id="another key"),
        pytest.param("seq = 99", r"record 3 is missing; restore", id="another place"),
    ],
)
def test_any_damage_to_a_record_names_it(path: Path, damage: str, message: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE records SET {damage} WHERE seq = 3")
    connection.close()

    with pytest.raises(LedgerError, match=message):
        list(read_records(path))


def test_a_record_of_a_later_asyncrl_is_named(path: Path) -> None:
    body = b"\x91\xa6Future"
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE records SET body = ?, crc32 = ? WHERE seq = 3", (body, zlib.crc32(body)))
    connection.close()

    with pytest.raises(LedgerError, match=r"record 3 .* use the asyncrl that wrote it"):
        list(read_records(path))


def test_reading_changes_nothing(path: Path) -> None:
    before = path.read_bytes()

    list(read_records(path))

    assert path.read_bytes() == before


LOCKED = """
import fcntl, sys
with open(sys.argv[1], "r+b") as index:
    try:
        fcntl.lockf(index, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 128)
    except BlockingIOError:
        print("locked")
"""
"""SQLite holds byte 128 of the index for as long as a process uses it (sqlite.org/walformat.html, 2.3)."""


def test_a_broker_that_reads_its_own_ledger_still_holds_it_afterwards(tmp_path):
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(path)
    assert list(read_records(path, is_writer_process=True)) == []
    command = [sys.executable, "-c", LOCKED, f"{path}-shm"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "locked\n"
    ledger.close()
