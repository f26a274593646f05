"""Any change of a ledger's records is found by their digest, and says where."""

import asyncio
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.broker.ledger.reader import Chain, ChainCheck, DeadLetter, dead_letters, read_ledger_meta, read_records
from asyncrl.broker.ledger.records import (
    Admitted,
    AnyRecord,
    FailedAttempt,
    Record,
    Result,
    Rewarded,
    Taken,
    VersionLive,
    encode,
    unique_key,
)
from asyncrl.errors import LedgerError
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import TrajectorySummary, Unit

TRANSACTIONS: list[list[Record]] = [
    [VersionLive(0, 0), Admitted(0, 0, 0, 0)],
    [Admitted(1, 0, 1, 0)],
    [Admitted(2, 0, 2, 0)],
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger of three transactions and four records."""
    path = tmp_path / "ledger.sqlite"

    async def write() -> None:
        with closing(Ledger(path)) as ledger:
            for records in TRANSACTIONS:
                await ledger.commit(records)

    asyncio.run(write())
    return path


def change(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def check_of(path: Path, *wanted: int) -> ChainCheck:
    meta = read_ledger_meta(path)
    check = ChainCheck(meta.run_id, meta.num_headless or 0, wanted)
    assert list(read_records(path, check=check))
    return check


def filed(seq: int, record: Admitted) -> str:
    """Statement that files a record under a number, with a valid checksum."""
    body = encode(record)
    key = unique_key(record)
    return f"UPDATE records SET key = '{key}', body = x'{body.hex()}', crc32 = {zlib.crc32(body)} WHERE seq = {seq}"


def test_the_records_that_were_written_are_those_that_are_read(path: Path) -> None:
    check = check_of(path, 1, 3)

    assert check.problem == ""
    assert check.chain.num_records == 4
    assert sorted(check.digests) == [0, 1, 3]
    assert len({*check.digests.values(), check.chain.head.digest}) == 4


def test_the_digest_goes_on_after_a_restart(path: Path) -> None:
    async def write() -> None:
        with closing(Ledger(path)) as ledger:
            await ledger.commit([Admitted(3, 0, 3, 0)])
            assert ledger.head == check_of_bodies(ledger.run_id)

    def check_of_bodies(run_id: str) -> object:
        chain = Chain(run_id)
        chain.add(*(encode(record) for records in TRANSACTIONS for record in records), encode(Admitted(3, 0, 3, 0)))
        return chain.head

    asyncio.run(write())
    assert check_of(path).problem == ""


@pytest.mark.parametrize(
    ("statements", "where"),
    [
        pytest.param([filed(3, Admitted(9, 0, 9, 0))], "records 3 to 3 are not", id="edited"),
        pytest.param([filed(1, Admitted(9, 0, 9, 0)), "UPDATE records SET kind = 'Admitted' WHERE seq = 1"],
                     "records 1 to 2 are not", id="edited within a transaction"),
        pytest.param(["DELETE FROM records WHERE seq = 2", "UPDATE records SET seq = seq - 1 WHERE seq > 2"],
                     "records 1 to 2 are not", id="deleted, the rest renumbered"),
        pytest.param(["UPDATE records SET seq = 9 WHERE seq = 4", "UPDATE records SET seq = 4 WHERE seq = 3",
                      "UPDATE records SET seq = 3 WHERE seq = 9"], "records 3 to 3 are not", id="two changed places"),
        pytest.param(["UPDATE records SET seq = 5 WHERE seq = 4",
                      "INSERT INTO records SELECT 4, kind, 'x', body, crc32, NULL FROM records WHERE seq = 3",
                      filed(4, Admitted(9, 0, 9, 0))], "records 4 to 5 are not", id="inserted"),
        pytest.param(["DELETE FROM records WHERE seq > 2", "UPDATE records SET head = NULL WHERE seq = 2"],
                     "records 1 to 2 have no digest", id="the end of a transaction removed"),
        pytest.param(["UPDATE records SET head = NULL"], "records 1 to 4 have no digest", id="no heads"),
        pytest.param(["UPDATE records SET head = 'text' WHERE seq = 3"], "records 3 to 3 are not", id="another head"),
        pytest.param(["UPDATE meta SET value = 'other' WHERE key = 'run_id'", "DELETE FROM meta WHERE key = 'crc32'"],
                     "records 1 to 2 are not", id="the records of another run"),
    ],
)  # fmt: skip
def test_a_change_is_found_and_no_broker_goes_on_from_it(path: Path, statements: list[str], where: str) -> None:
    change(path, *statements)

    assert check_of(path).problem.startswith(where)
    with pytest.raises(LedgerError, match=f"is damaged: {where}"):
        Ledger(path)


def old_ledger(path: Path) -> None:
    """Make the ledger one of an earlier asyncrl, whose records have no heads."""
    change(path, "ALTER TABLE records DROP COLUMN head", "UPDATE meta SET value = 3 WHERE key = 'schema_version'",
           "DELETE FROM meta WHERE key = 'crc32'")  # fmt: skip


def test_a_ledger_of_an_earlier_asyncrl_is_read_and_says_that_it_has_no_heads(path: Path) -> None:
    old_ledger(path)

    assert len(list(read_records(path))) == 4
    assert read_ledger_meta(path).num_headless is None


@pytest.mark.parametrize("appended", [0, 1])
def test_a_broker_that_opens_a_ledger_of_an_earlier_asyncrl_covers_it_from_there_on(path: Path, appended: int) -> None:
    old_ledger(path)

    async def write() -> None:
        with closing(Ledger(path)) as ledger:
            for number in range(appended):
                await ledger.commit([Admitted(3 + number, 0, 3, 0)])

    asyncio.run(write())
    assert read_ledger_meta(path).num_headless == 4
    assert check_of(path).problem == ""
    change(path, filed(2, Admitted(9, 0, 9, 0)))
    assert bool(check_of(path).problem) == bool(appended)


@pytest.mark.parametrize("open_it", [Ledger, lambda path: next(read_records(path))])
def test_a_ledger_without_the_column_of_heads_is_damaged(path: Path, open_it: Callable[[Path], object]) -> None:
    change(path, "ALTER TABLE records DROP COLUMN head")

    with pytest.raises(LedgerError, match="no such column: head"):
        open_it(path)


# ── test dead letters ─────────────────────────────────────────────────────────────────────────
# Dead letters and their dataset rows.


def test_a_dead_letter_names_the_row_of_its_prompt():
    records: list[AnyRecord] = [
        Admitted(7, epoch=1, row=42, policy_version=3),
        FailedAttempt(Unit(7, 2), "rollout", "out of memory", 1, False),
        FailedAttempt(Unit(7, 2), "rollout", "out of memory again", 2, True),
    ]
    assert dead_letters(records) == [
        DeadLetter(
            split="train",
            group_id=7,
            index=2,
            epoch=1,
            row=42,
            stage="rollout",
            attempts=2,
            reason="out of memory again",
        )
    ]


@pytest.mark.parametrize(("recorded", "row"), [(5, 5), (0, 0), (-1, None)])
def test_a_held_out_dead_letter_names_its_own_row_if_it_was_recorded(recorded: int, row: int | None):
    records: list[AnyRecord] = [
        Admitted(7, epoch=1, row=42, policy_version=3),
        FailedAttempt(Unit(7, 0, "held_out"), "reward", "hung", 1, True, recorded),
    ]
    (letter,) = dead_letters(records)
    assert (letter.split, letter.epoch, letter.row) == ("held_out", None, row)


def test_failures_that_were_tried_again_are_no_dead_letters():
    assert dead_letters([FailedAttempt(Unit(0, 0), "reward", "hung", 1, False)]) == []


# ── test reader ───────────────────────────────────────────────────────────────────────────────
# Reading a ledger, sound or damaged.

SUMMARY = TrajectorySummary(
    num_tokens=9, prompt_tokens=2, oldest_version=4, newest_version=5, num_spans=2, finish_reason="stop"
)


def result(unit: Unit) -> Result:
    return Result(unit, 1, SpoolRef("s0", 0, 16, 100, 7), SUMMARY)


@pytest.fixture
def reader_path(tmp_path: Path) -> Path:
    reader_path = tmp_path / "ledger.sqlite"
    records: list[Record] = [
        Admitted(group_id=1, epoch=0, row=0, policy_version=0),
        *(result(Unit(1, index)) for index in (10, 9, 0)),
        result(Unit(10, 0)),
        result(Unit(1, 3, "held_out")),
        Rewarded(Unit(1, 9), 1.0),
        Taken(step=4, group_ids=[1]),
    ]

    async def write() -> None:
        ledger = Ledger(reader_path)
        await ledger.commit(records)
        ledger.close()

    asyncio.run(write())
    return reader_path


def test_records_come_in_the_order_they_were_written(reader_path: Path) -> None:
    assert [type(record) for record in read_records(reader_path)] == [Admitted, *[Result] * 5, Rewarded, Taken]


def test_a_damaged_record_is_named(reader_path: Path) -> None:
    with sqlite3.connect(reader_path) as connection:
        connection.execute("UPDATE records SET body = x'93' WHERE seq = 3")
    connection.close()

    with pytest.raises(LedgerError, match=r"record 3 of the ledger .* checksum"):
        list(read_records(reader_path))


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
def test_any_damage_to_a_record_names_it(reader_path: Path, damage: str, message: str) -> None:
    with sqlite3.connect(reader_path) as connection:
        connection.execute(f"UPDATE records SET {damage} WHERE seq = 3")
    connection.close()

    with pytest.raises(LedgerError, match=message):
        list(read_records(reader_path))


def test_a_record_of_a_later_asyncrl_is_named(reader_path: Path) -> None:
    body = b"\x91\xa6Future"
    with sqlite3.connect(reader_path) as connection:
        connection.execute("UPDATE records SET body = ?, crc32 = ? WHERE seq = 3", (body, zlib.crc32(body)))
    connection.close()

    with pytest.raises(LedgerError, match=r"record 3 .* use the asyncrl that wrote it"):
        list(read_records(reader_path))


def test_reading_changes_nothing(reader_path: Path) -> None:
    before = reader_path.read_bytes()

    list(read_records(reader_path))

    assert reader_path.read_bytes() == before


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
    reader_path = tmp_path / "ledger.sqlite"
    ledger = Ledger(reader_path)
    assert list(read_records(reader_path, is_writer_process=True)) == []
    command = [sys.executable, "-c", LOCKED, f"{reader_path}-shm"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "locked\n"
    ledger.close()
