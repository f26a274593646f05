"""Records are acknowledged once they are durable, and are written once."""

import asyncio
import resource
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from asyncrl.broker.ledger import ledger as ledger_module
from asyncrl.broker.ledger.database import LockWait
from asyncrl.broker.ledger.ledger import ROWS_PER_STATEMENT, Ledger
from asyncrl.broker.ledger.reader import LedgerMeta, read_ledger_meta, read_records
from asyncrl.broker.ledger.records import (
    Admitted,
    AnyRecord,
    Committed,
    Dropped,
    Record,
    Restarted,
    Result,
    Rewarded,
    Taken,
)
from asyncrl.errors import BrokenInvariant, LedgerError, RunFailed
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import TrajectorySummary, Unit

SUMMARY = TrajectorySummary(
    num_tokens=9, prompt_tokens=2, oldest_version=4, newest_version=5, num_spans=2, finish_reason="stop"
)


def admitted(group_id: int) -> Admitted:
    return Admitted(group_id=group_id, epoch=0, row=group_id, policy_version=0)


def result(group_id: int, index: int = 0, lease_id: int = 1) -> Result:
    return Result(Unit(group_id, index), lease_id, SpoolRef("s0", 0, 16, 100, 7), SUMMARY)


def rewarded(group_id: int, index: int = 0) -> Rewarded:
    return Rewarded(Unit(group_id, index), 0.5, {"correct": 1.0})


def write(path: Path, *calls: Sequence[Record]) -> Ledger:
    """Commit all calls at once, in order, then close."""

    async def run() -> Ledger:
        ledger = Ledger(path)
        await asyncio.gather(*(ledger.commit(records) for records in calls))
        ledger.close()
        return ledger

    return asyncio.run(run())


def read(path: Path) -> list[AnyRecord]:
    return list(read_records(path))


def test_records_are_read_in_the_order_they_were_committed(tmp_path: Path) -> None:
    path = tmp_path / "run" / "ledger.sqlite"

    write(path, [admitted(0), admitted(1)], [result(1)], [rewarded(1), Taken(0, [1, 0])])

    assert read(path) == [admitted(0), admitted(1), result(1), rewarded(1), Taken(0, [1, 0])]


FEW = st.integers(0, 3)
"""Few ids, so that many calls are refused."""
RECORDS = st.one_of(
    st.builds(admitted, FEW),
    st.builds(result, FEW, FEW),
    st.builds(rewarded, FEW, FEW),
    st.builds(Taken, FEW, st.lists(FEW, max_size=2)),
    st.builds(Dropped, FEW, st.just("failed"), FEW),
    st.builds(Committed, FEW, st.text(max_size=5)),
)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(RECORDS, max_size=3), max_size=6))
def test_exactly_the_committed_records_are_read(calls: list[list[AnyRecord]]) -> None:
    """Refused calls leave no trace; all others are there, whole and in order."""

    async def run(path: Path) -> list[AnyRecord]:
        ledger = Ledger(path)
        outcomes = await asyncio.gather(*(ledger.append(call) for call in calls), return_exceptions=True)
        ledger.close()
        assert all(outcome is None or isinstance(outcome, BrokenInvariant) for outcome in outcomes)
        return [record for call, outcome in zip(calls, outcomes, strict=True) if outcome is None for record in call]

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "ledger.sqlite"
        expected = asyncio.run(run(path))
        assert read(path) == expected


def test_many_commits_share_few_transactions(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"

    ledger = write(path, *([admitted(group_id)] for group_id in range(500)))

    assert ledger.num_transactions <= 20  # the first may go alone; the rest gathers behind it
    assert len(read(path)) == 500


def test_a_commit_that_returned_is_seen_by_another_connection(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"

    async def run() -> None:
        ledger = Ledger(path)
        await ledger.commit([admitted(0)])
        assert read(path) == [admitted(0)]
        await ledger.commit([admitted(1)])
        assert read(path) == [admitted(0), admitted(1)]
        ledger.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("twice", "message"),
    [
        pytest.param([result(3, lease_id=2)], "result/train/3/0: it is there", id="a second result of a unit"),
        pytest.param([rewarded(3)], "rewarded/train/3/0: it is there", id="a second reward of a unit"),
        pytest.param([admitted(3)], "admitted/3: it is there", id="a group admitted again"),
        pytest.param([Taken(0, [4])], "taken/0: it is there", id="another batch for the same step"),
        pytest.param([Taken(1, [3])], "end group 3 by taken/1: it has ended by taken/0", id="a group in two batches"),
        pytest.param([Dropped(3, "failed", 0)], "end group 3 by dropped", id="a trained group dropped"),
        pytest.param([admitted(8), admitted(8)], "two equal records in one call", id="twice in one call"),
    ],
)
def test_the_database_refuses_to_count_twice(tmp_path: Path, twice: list[Record], message: str) -> None:
    """The call is refused as a whole; calls in the same transaction are not touched."""
    path = tmp_path / "ledger.sqlite"
    before: list[Record] = [admitted(3), result(3), rewarded(3), Taken(0, [3])]

    async def run() -> None:
        ledger = Ledger(path)
        await ledger.commit(before)
        outcomes = await asyncio.gather(
            ledger.commit([admitted(9)]),
            ledger.commit([admitted(10), *twice]),
            ledger.commit([admitted(11)]),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [type(None), BrokenInvariant, type(None)]
        assert message in str(outcomes[1])
        ledger.close()

    asyncio.run(run())
    assert read(path) == [*before, admitted(9), admitted(11)]


def test_a_call_with_more_records_than_one_statement_is_atomic(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    many: list[Record] = [admitted(group_id) for group_id in range(3 * ROWS_PER_STATEMENT + 1)]

    async def run() -> None:
        ledger = Ledger(path)
        with pytest.raises(BrokenInvariant, match="two equal records in one call"):
            await ledger.commit([*many, many[-1]])
        await ledger.commit(many)
        ledger.close()

    asyncio.run(run())
    assert read(path) == many


def test_a_restarted_group_has_each_result_once_again(tmp_path: Path) -> None:
    path, again = tmp_path / "ledger.sqlite", replace(result(1), num_restarts=1)

    write(path, [admitted(1), result(1), Restarted(1, 2, [9]), again, replace(rewarded(1), num_restarts=1)])

    assert read(path)[2:4] == [Restarted(1, 2, [9]), again]
    with pytest.raises(BrokenInvariant, match="result/train/1~1/0: it is there already"):
        write(path, [replace(again, lease_id=2)])


def test_a_repeatable_record_is_not_refused(tmp_path: Path) -> None:
    """A trainer that resumed says Commit again."""
    path = tmp_path / "ledger.sqlite"

    write(path, [Committed(4, "step_000004")], [Committed(4, "step_000004")])

    assert len(read(path)) == 2


def test_each_opening_is_a_new_broker_term(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"

    first, second = write(path), write(path)

    assert (first.broker_term, second.broker_term) == (1, 2)


def test_a_ledger_counts_its_records_on_disk_over_all_terms(tmp_path: Path) -> None:
    async def main() -> None:
        for term in range(2):
            ledger = Ledger(tmp_path / "ledger.sqlite")
            assert ledger.head.num_records == term * 2
            await ledger.commit([admitted(term * 2), admitted(term * 2 + 1)])
            assert ledger.head.num_records == term * 2 + 2
            ledger.close()

    asyncio.run(main())


def test_a_ledger_has_one_run_id_and_remembers_the_first_value_of_a_key(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    first = Ledger(path)
    assert first.remember("train_digest", "aa") == "aa"
    first.close()
    second = Ledger(path)
    assert second.remember("train_digest", "bb") == "aa"
    started = second.started()
    second.close()
    assert second.run_id == first.run_id
    meta = read_ledger_meta(path)
    assert meta[:6] == LedgerMeta(first.run_id, 2, "aa", "")[:6]
    assert meta.digest == started.meta


def test_an_older_broker_cannot_write_once_a_newer_one_has_opened_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"

    async def run() -> None:
        older, newer = Ledger(path), Ledger(path)
        with pytest.raises(RunFailed, match=r"another broker \(term 2\)"):
            await older.commit([admitted(0)])
        await newer.commit([admitted(1)])
        older.close()
        newer.close()

    asyncio.run(run())
    assert read(path) == [admitted(1)]


def test_a_full_disk_fails_every_waiting_and_later_call(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def run() -> None:
        ledger = Ledger(path)
        await ledger.commit([admitted(0)])
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # less than one of them
        try:
            big = [ledger.commit([admitted(i) for i in range(1000 * call, 1000 * call + 900)]) for call in range(1, 4)]
            outcomes = await asyncio.gather(*big, return_exceptions=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

        assert [type(outcome) for outcome in outcomes] == [RunFailed] * 3
        assert "cannot write the ledger" in str(outcomes[0])
        with pytest.raises(RunFailed, match="cannot write the ledger"):
            ledger.append([admitted(5)])
        ledger.close()

    asyncio.run(run())
    assert read(path) == [admitted(0)]


def test_an_id_no_database_can_hold_ends_the_run_and_hangs_nobody(tmp_path: Path) -> None:
    async def run() -> None:
        ledger = Ledger(tmp_path / "ledger.sqlite")
        with pytest.raises(RunFailed, match="cannot write the ledger"):
            await ledger.commit([Dropped(2**63, "failed", 0)])
        ledger.close()

    asyncio.run(run())


def test_a_cancelled_waiter_does_not_take_its_records_back(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"

    async def run() -> None:
        ledger = Ledger(path)
        ledger.append([admitted(0)]).cancel()
        await ledger.commit([admitted(1)])
        ledger.close()

    asyncio.run(run())
    assert read(path) == [admitted(0), admitted(1)]


def test_closing_writes_what_waits_and_then_takes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"

    async def run() -> None:
        ledger = Ledger(path)
        waiting = ledger.append([admitted(0)])
        ledger.close()
        ledger.close()
        await waiting
        with pytest.raises(LedgerError, match="was closed"):
            await ledger.commit([admitted(1)])

    asyncio.run(run())
    assert read(path) == [admitted(0)]


@contextmanager
def transaction_of_another(path: Path) -> Iterator[None]:
    """Lock a ledger as a person does who types ``BEGIN IMMEDIATE`` into `sqlite3`."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("COMMIT")


def test_a_transaction_of_another_program_is_waited_for_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"

    async def run() -> None:
        ledger = Ledger(path)
        with transaction_of_another(path):
            calls = [ledger.append([admitted(group_id)]) for group_id in range(3)]
            while not ledger.lock_wait.waited_s:
                await asyncio.sleep(0)
            assert not any(call.done() for call in calls)
        await asyncio.gather(*calls)
        assert ledger.lock_wait.waited_s == 0
        ledger.close()

    asyncio.run(run())
    assert read(path) == [admitted(0), admitted(1), admitted(2)]


def test_a_ledger_is_opened_once_another_program_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    write(path, [admitted(0)])
    locked = ExitStack()
    locked.enter_context(transaction_of_another(path))

    ledger = Ledger(path, LockWait(sleep=lambda _: locked.close()))

    assert ledger.broker_term == 2
    ledger.close()


def test_a_ledger_that_is_left_while_it_is_locked_says_who_has_locked_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "LEAVE_S", 0.0)
    path = tmp_path / "ledger.sqlite"

    async def run() -> None:
        ledger = Ledger(path)
        with transaction_of_another(path):
            call = ledger.append([admitted(0)])
            ledger.leave()
            with pytest.raises(RunFailed, match="another program has locked it, and has not let go in time; end its"):
                await call
            assert ledger.lock_wait.has_given_up
            ledger.close()

    asyncio.run(run())
    assert read(path) == []


def test_a_reader_in_the_middle_of_the_records_holds_nobody_up(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    write(path, [admitted(0), admitted(1)])

    async def run() -> None:
        ledger = Ledger(path, LockWait(sleep=lambda _: pytest.fail("the writer had to wait")))
        reading = read_records(path, is_writer_process=True)
        assert next(reading) == admitted(0)
        await ledger.commit([admitted(2)])
        assert list(reading) == [admitted(1)], "as of its first record"
        ledger.close()

    asyncio.run(run())


def foreign_database(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()


def other_schema(path: Path) -> None:
    write(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = 99 WHERE key = 'schema_version'")
    connection.close()


@pytest.mark.parametrize("open_it", [Ledger, lambda path: next(read_records(path))])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        pytest.param(lambda path: path.write_text("dear diary\n" * 99), "not a database", id="not a database"),
        pytest.param(foreign_database, "not an asyncrl ledger", id="another program's"),
        pytest.param(other_schema, "has ledger schema 99, this asyncrl uses 4", id="another schema"),
        pytest.param(lambda path: path.mkdir(), "ledger", id="a directory"),
    ],
)
def test_a_foreign_file_is_refused(
    tmp_path: Path, open_it: Callable[[Path], object], spoil: Callable[[Path], object], message: str
) -> None:
    path = tmp_path / "ledger.sqlite"
    spoil(path)

    with pytest.raises(LedgerError, match=message):
        open_it(path)


def test_reading_creates_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no ledger"):
        next(read_records(tmp_path / "ledger.sqlite"))

    assert list(tmp_path.iterdir()) == []
