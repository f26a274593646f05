"""What a ledger answers."""

import asyncio
import sqlite3
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.broker.ledger.reader import LedgerReader
from asyncrl.broker.ledger.records import Admitted, Record, Result, Rewarded, Taken
from asyncrl.errors import LedgerError
from asyncrl.messages import SpoolRef, TrajectorySummary, Unit

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


def test_results_of_a_group_come_in_order_of_index_with_their_verdicts(path: Path) -> None:
    with LedgerReader(path) as reader:
        assert reader.results(1) == [
            (result(Unit(1, 0)), None),
            (result(Unit(1, 9)), Rewarded(Unit(1, 9), 1.0)),
            (result(Unit(1, 10)), None),
        ]
        assert reader.results(1, "held_out") == [(result(Unit(1, 3, "held_out")), None)]
        assert reader.results(2) == []


def test_a_batch_is_found_by_its_step(path: Path) -> None:
    with LedgerReader(path) as reader:
        assert reader.taken(4) == Taken(4, [1])
        assert reader.taken(5) is None


def test_counts_are_by_kind(path: Path) -> None:
    with LedgerReader(path) as reader:
        assert reader.counts() == {"Admitted": 1, "Result": 5, "Verdict": 1, "Taken": 1}


def test_a_damaged_record_is_named(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE records SET body = x'93' WHERE seq = 3")
    connection.close()

    with LedgerReader(path) as reader, pytest.raises(LedgerError, match=r"record 3 of the ledger .* checksum"):
        list(reader.records())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param("body = 3", r"record 3 of .* checksum does not fit; restore", id="a number"),
        pytest.param("body = 'text'", r"record 3 of .* checksum does not fit; restore", id="text"),
        pytest.param("crc32 = 'text'", r"record 3 of .* checksum does not fit; restore", id="no checksum"),
        pytest.param("kind = 'Taken'", r"record 3 of .* is filed as 'Taken' 'result/train/1/9'", id="another kind"),
        pytest.param("key = 'taken/9'", r"record 3 of .* is filed as 'Result' 'taken/9'", id="another key"),
        pytest.param("seq = 99", r"record 3 is missing; restore", id="another place"),
    ],
)
def test_whatever_a_record_has_become_it_is_named(path: Path, damage: str, message: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE records SET {damage} WHERE seq = 3")
    connection.close()

    with LedgerReader(path) as reader, pytest.raises(LedgerError, match=message):
        list(reader.records())


def test_a_record_of_a_later_asyncrl_is_named(path: Path) -> None:
    body = b"\x91\xa6Future"
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE records SET body = ?, crc32 = ? WHERE seq = 3", (body, zlib.crc32(body)))
    connection.close()

    with LedgerReader(path) as reader, pytest.raises(LedgerError, match=r"record 3 .* use the asyncrl that wrote it"):
        list(reader.records())


def test_reading_changes_nothing(path: Path) -> None:
    before = path.read_bytes()

    with LedgerReader(path) as reader:
        list(reader.records())

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
    with LedgerReader(path, is_ours=True) as reader:
        assert list(reader.records()) == []
    command = [sys.executable, "-c", LOCKED, f"{path}-shm"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "locked\n"
    ledger.close()
