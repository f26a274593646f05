"""
The broker's ledger, open for writing. The broker acts on a record only once it is on disk.

    event loop ── append ─▶ queue ──▶ writer thread: one transaction for everything queued ──▶ disk
               ◀──────── futures are resolved ─────────────────────────────────────────────────┘

One fsync takes milliseconds, whether it covers one record or a thousand. Calls that arrive during a transaction share
the next one, so a call waits for at most one other fsync, at tens of thousands of records a second.

Invariants:
    records are in the file in the order of the calls, and a call's records are all there or none;
    a future is resolved only after the transaction that holds its records is on disk;
    after a failed write nothing more is written, and every caller gets the error; another program's lock is no failure;
    of two brokers that opened a ledger, only the later one can write;
    the last record of a transaction has the digest of all records up to it (`chain`).
"""

import asyncio
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from asyncrl.broker.ledger.database import (
    CHAIN_ID,
    NUM_HEADLESS,
    LockWait,
    check_wal,
    holder,
    is_lock,
    meta_digest,
    open_writable,
    read_meta,
    write_meta,
)
from asyncrl.broker.ledger.reader import REMEDY as RESTORE
from asyncrl.broker.ledger.reader import Chain, ChainCheck
from asyncrl.broker.ledger.records import Record, Started, encode, ended_groups, unique_key
from asyncrl.errors import AsyncrlError, BrokenInvariant, LedgerError, RunFailed
from asyncrl.files.atomic import REMEDY, cause

Row = tuple[str, str | None, bytes, int]
RECORDS = "records (kind, key, body, crc32)"
PUT_HEAD = "UPDATE records SET head = ? WHERE seq = ?"  # Cheaper than one more value in every row.
RETIRED = "retired"
# Python releases its global lock once per statement, and while the event loop computes, getting it back takes far
# longer than writing a row.
ROWS_PER_STATEMENT = 64
LEAVE_S = 5.0
"""Time for another program to let go of the ledger, once this one leaves it."""


class _Call(NamedTuple):
    """One `Ledger.append` in the queue of the writer thread."""

    records: list[Row]
    ended: list[tuple[int, str]]
    future: asyncio.Future[None]


class Ledger:
    """
    A run's records, open for writing; `asyncrl.broker.ledger.reader.read_records` reads them.

    Opening starts a new broker term, durable before the constructor returns, so that lease ids of two brokers never
    collide.

    Args:
        lock_wait: Waits for locks of other programs, on opening too; None takes one that nobody else knows.

    Raises:
        LedgerError: The file cannot be opened, is damaged, is not a ledger, or has another schema version; or its
            records are not those that were written.
    """

    def __init__(self, path: Path, lock_wait: LockWait | None = None) -> None:
        self.num_transactions = 0
        """Each is one fsync."""
        self.transactions_s = 0.0
        """Seconds that they took."""
        self.torn = check_wal(path)
        """The incomplete transaction that SQLite discards on opening, if the last broker left one."""
        self._path = path
        self.lock_wait = lock_wait or LockWait()
        self._connection = self.lock_wait.retry(partial(open_writable, path))
        self.run_id = str(self.read_meta("run_id"))
        """Identity of the run, made with the ledger, or when a copy was first served."""
        self.broker_term = self._begin_term()
        """Number of brokers that have opened this ledger."""
        self._chain = self._checked_chain()  # After that: an earlier broker cannot write any more.
        self.head = self._chain.head
        """Number of records on disk, and their digest."""
        self._ended: AsyncrlError | None = None
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._writer = Thread(target=self._write, name="ledger", daemon=True)
        self._writer.start()

    def append(self, records: Iterable[Record]) -> asyncio.Future[None]:
        """
        Queue records behind all earlier ones. The future is done when they are on disk.

        Cancelling the future does not take the records back.

        Raises:
            BrokenInvariant: By the future: the ledger has one of the records already. None of this call is written.
            RunFailed: By the future, or at once after an earlier failure: the ledger cannot be written any more.
            LedgerError: The ledger was closed.
        """
        if self._ended is not None:
            raise _copy(self._ended)
        records = list(records)
        call = _Call(
            [_row(record) for record in records],
            [(group_id, unique_key(record) or "dropped") for record in records for group_id in ended_groups(record)],
            asyncio.get_running_loop().create_future(),
        )
        self._calls.put(call)
        return call.future

    async def commit(self, records: Iterable[Record]) -> None:
        """`append`, and wait until the records are on disk."""
        await self.append(records)

    @property
    def locked_by(self) -> str:
        """Program that has locked the ledger, in words."""
        return holder(self._path)

    def leave(self) -> None:
        """Do not wait for another program's lock for longer than `LEAVE_S` from now on."""
        self.lock_wait.leave(LEAVE_S)

    def close(self) -> None:
        """Write what is queued, then close; as `leave`. Idempotent."""
        self.leave()
        if self._writer.is_alive():
            self._calls.put(None)
            self._writer.join()
        self._ended = self._ended or LedgerError(f"the ledger {self._path} was closed")
        self._connection.close()

    def read_meta(self, key: str) -> int | str | None:
        """Value of a fact about the whole run; None if it is not recorded."""
        return read_meta(self._connection, key)

    def remember(self, key: str, value: str) -> str:
        """Record a fact if none is recorded under ``key``. Returns the one that is recorded then. As `write_meta`."""
        if (recorded := self.read_meta(key)) is not None:
            return str(recorded)
        self.write_meta(key, value)
        return value

    def rename_run(self, run_id: str) -> None:
        """Give a copied run an identity of its own. As `write_meta`."""
        self.remember(CHAIN_ID, self.run_id)
        self.write_meta("run_id", run_id)
        self.run_id = run_id

    def write_meta(self, key: str, value: int | str) -> None:
        """Record a fact about the whole run; it is on disk when this returns. Call before the first `append`."""
        try:
            self.lock_wait.retry(partial(self._transact_meta, key, lambda: value))
        except sqlite3.Error as error:
            raise LedgerError(self._cannot_write(error)) from error

    def started(self) -> Started:
        """The record of this start, which covers the facts about the run that `write_meta` has recorded by now."""
        return Started(self.broker_term, meta_digest(self._connection))

    def _checked_chain(self) -> Chain:
        """Digest of the records that there are, compared with those that were stored."""
        check = ChainCheck(str(self.read_meta(CHAIN_ID) or self.run_id), int(self.read_meta(NUM_HEADLESS) or 0))
        for body, head in self._connection.execute("SELECT body, head FROM records ORDER BY seq"):
            check.add(body if isinstance(body, bytes) else b"", head)
        if check.problem:
            self._connection.close()
            raise LedgerError(f"the ledger {self._path} is damaged: {check.problem}; {RESTORE}")
        return check.chain

    def _begin_term(self) -> int:
        try:
            return int(
                self.lock_wait.retry(
                    lambda: self._transact_meta("broker_term", lambda: int(self.read_meta("broker_term") or 0) + 1)
                )
            )
        except sqlite3.Error as error:
            self._connection.close()
            raise LedgerError(self._cannot_write(error)) from error

    def _transact_meta(self, key: str, value_of: Callable[[], int | str]) -> int | str:
        with self._transaction():
            write_meta(self._connection, key, value := value_of())
        return value

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """A transaction that is on disk after the block; one that meets a lock is rolled back, to be tried again."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if is_lock(error):
                self._connection.execute("ROLLBACK")
            raise

    def _cannot_write(self, error: Exception) -> str:
        if is_lock(error):
            return (
                f"cannot write the ledger {self._path}: {self.locked_by} has locked it, and has not let go in time; "
                f"end its transaction, then start or resume the run"
            )
        return f"cannot write the ledger {self._path}: {cause(self._path, error)}; {REMEDY}"

    # ── in the writer thread ────────────────────────────────────────────────────────────────

    def _write(self) -> None:
        is_open = True
        while is_open:
            calls, is_open = _gather(self._calls)
            if calls:
                self._settle(calls)

    def _settle(self, calls: list[_Call]) -> None:
        """Write the calls in one transaction; if the database refuses it, one by one, to refuse only the bad call."""
        if self._ended is None:
            try:
                self.lock_wait.retry(partial(self._transact, calls))
            except BrokenInvariant as refusal:
                if len(calls) > 1:
                    for call in calls:
                        self._settle([call])
                else:
                    _resolve(calls, refusal)
                return
            except RunFailed as failure:
                self._ended = failure
            except (sqlite3.Error, OverflowError) as error:  # OverflowError: an id of more than 64 bits
                # The file is not touched again; SQLite rolls back an open transaction by itself.
                self._ended = RunFailed(self._cannot_write(error))
        _resolve(calls, self._ended)

    def _transact(self, calls: Sequence[_Call]) -> None:
        began_s, chain = time.perf_counter(), self._chain.copy()
        try:
            with self._transaction():
                self._require_own_term()
                for call in calls:
                    self._insert(RECORDS, call.records)
                    self._insert(RETIRED, call.ended)
                    chain.add(*(body for _, _, body, _ in call.records))
                if (head := chain.head) != self.head:
                    self._connection.execute(PUT_HEAD, (bytes.fromhex(head.digest), head.num_records))
            self.num_transactions += 1
            self.transactions_s += time.perf_counter() - began_s
            self._chain, self.head = chain, head
        except sqlite3.IntegrityError as error:
            self._connection.execute("ROLLBACK")
            raise BrokenInvariant(f"the ledger {self._path} refuses {self._conflict(calls)}") from error

    def _insert(self, into: str, rows: Sequence[tuple[Any, ...]]) -> None:
        for first in range(0, len(rows), ROWS_PER_STATEMENT):
            some = rows[first : first + ROWS_PER_STATEMENT]
            row = f"({', '.join('?' * len(some[0]))})"
            values = ", ".join([row] * len(some))
            self._connection.execute(f"INSERT INTO {into} VALUES {values}", list(chain.from_iterable(some)))

    def _conflict(self, calls: Sequence[_Call]) -> str:
        """The record that the database refused, for the error message."""
        for call in calls:
            for _, key, *_ in call.records:
                if self._connection.execute("SELECT 1 FROM records WHERE key = ?", (key,)).fetchone():
                    return f"{key}: it is there already"
            for group_id, how in call.ended:
                row = self._connection.execute("SELECT how FROM retired WHERE group_id = ?", (group_id,)).fetchone()
                if row:
                    return f"to end group {group_id} by {how}: it has ended by {row[0]}"
        return "two equal records in one call"

    def _require_own_term(self) -> None:
        term = read_meta(self._connection, "broker_term")
        if term != self.broker_term:
            self._connection.execute("ROLLBACK")
            raise RunFailed(
                f"another broker (term {term}) has opened the ledger {self._path}, so this one (term "
                f"{self.broker_term}) must not write any more; keep only one broker running"
            )


def _row(record: Record) -> Row:
    body = encode(record)
    return type(record).__name__, unique_key(record), body, zlib.crc32(body)


def _gather(calls: SimpleQueue[_Call | None]) -> tuple[list[_Call], bool]:
    """Wait for a call, then take every queued one. The flag is False once the queue is closed."""
    gathered: list[_Call] = []
    call = calls.get()
    with suppress(Empty):
        while call is not None:
            gathered.append(call)
            call = calls.get_nowait()
        return gathered, False
    return gathered, True


def _resolve(calls: Sequence[_Call], error: AsyncrlError | None) -> None:
    """Resolve the futures, with one wake-up per event loop."""
    for loop in {call.future.get_loop() for call in calls}:
        with suppress(RuntimeError):  # The loop is closed: nothing waits there.
            loop.call_soon_threadsafe(_resolve_here, [c for c in calls if c.future.get_loop() is loop], error)


def _resolve_here(calls: Sequence[_Call], error: AsyncrlError | None) -> None:
    for call in calls:
        if call.future.done():  # cancelled
            continue
        if error is None:
            call.future.set_result(None)
        else:
            call.future.set_exception(_copy(error))


def _copy(error: AsyncrlError) -> AsyncrlError:
    """An equal error for one more caller: a raised exception collects the traceback of its raiser."""
    return type(error)(*error.args)
