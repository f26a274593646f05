"""Any change of a ledger's records is found by their digest, and says where."""

import asyncio
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from asyncrl.broker.ledger.chain import Chain, ChainCheck
from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.broker.ledger.reader import read_ledger_meta, read_records
from asyncrl.broker.ledger.records import Admitted, Record, VersionLive, encode, unique_key
from asyncrl.errors import LedgerError

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
