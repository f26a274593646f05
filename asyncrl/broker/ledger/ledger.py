"""
The broker's memory: what it promised is in here before it says so.

    broker's loop ── append ─▶ waiting ──▶ writer thread: one transaction for all that waits ──▶ durable
                  ◀──────────────── futures are resolved ───────────────────────────────────────────┘

One fsync takes milliseconds, whether it covers one record or a thousand. So what arrives during a transaction goes into
the next one together: at most one fsync of waiting for everybody, and tens of thousands of records a second.

Invariants:
    records are in the file in the order of the calls, and a call's records are all there or none;
    a future is resolved only after the transaction that holds its records is on disk;
    after a failed write nothing more is written, and every caller hears why;
    of two brokers that opened a ledger, only the later one can write.
"""

import asyncio
import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from asyncrl.broker.ledger.file import open_writable, read_meta, write_meta
from asyncrl.broker.ledger.records import Record, encode, key, retired
from asyncrl.broker.ledger.tail import examine
from asyncrl.errors import AsyncrlError, BrokenInvariant, LedgerError, RunFailed
from asyncrl.files.disk import REMEDY

Row = tuple[str, str | None, bytes, int]
RECORDS = "records (kind, key, body, crc32)"
RETIRED = "retired"
ROWS_AT_ONCE = 64
"""
Rows of one statement. Python gives its lock away for each statement, and while the broker computes, getting it back
takes far longer than writing a row.
"""


class _Call(NamedTuple):
    """One `Ledger.append`, on its way to the writer thread."""

    records: list[Row]
    retired: list[tuple[int, str]]
    future: asyncio.Future[None]


class Ledger:
    """
    A run's records, open for writing; reading is for `asyncrl.broker.ledger.reader.LedgerReader`.

    Opening begins a new broker epoch, on disk before this returns, so that lease tokens of two brokers never meet.

    Raises:
        LedgerError: The file cannot be opened, is damaged, is not a ledger, or is one of another schema version.
    """

    def __init__(self, path: Path) -> None:
        self.num_transactions = 0
        """Each is one fsync."""
        self.torn = examine(path)
        """The tail that was cut when it was opened, if its last broker left one."""
        self._path = path
        self._connection = open_writable(path)
        self.run_id = str(read_meta(self._connection, "run_id"))
        """Random, made with the file."""
        self.broker_term = self._begin_term()
        """How many brokers have opened this ledger."""
        self._ended: AsyncrlError | None = None
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._writer = Thread(target=self._write, name="ledger", daemon=True)
        self._writer.start()

    def append(self, records: Iterable[Record]) -> asyncio.Future[None]:
        """
        Queue records behind all earlier ones. The future is done when they are on disk.

        Cancelling the future does not take them back.

        Raises:
            BrokenInvariant: By the future: one of them is already there, and none of this call was written.
            RunFailed: By the future, or at once if it was known: the ledger cannot be written any more.
            LedgerError: It was closed.
        """
        if self._ended is not None:
            raise _again(self._ended)
        records = list(records)
        call = _Call(
            [_row(record) for record in records],
            [(group_id, key(record) or "dropped") for record in records for group_id in retired(record)],
            asyncio.get_running_loop().create_future(),
        )
        self._calls.put(call)
        return call.future

    async def commit(self, records: Iterable[Record]) -> None:
        """`append`, and wait until it is on disk."""
        await self.append(records)

    def close(self) -> None:
        """Write what waits, then close. Idempotent."""
        if self._writer.is_alive():
            self._calls.put(None)
            self._writer.join()
        self._ended = self._ended or LedgerError(f"the ledger {self._path} was closed")
        self._connection.close()

    def _begin_term(self) -> int:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            epoch = int(read_meta(self._connection, "broker_term") or 0) + 1
            write_meta(self._connection, "broker_term", epoch)
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._connection.close()
            raise LedgerError(f"cannot write the ledger {self._path}: {error}; {REMEDY}") from error
        return epoch

    # ── in the writer thread ────────────────────────────────────────────────────────────────

    def _write(self) -> None:
        """Transaction after transaction, until `close`."""
        is_open = True
        while is_open:
            calls, is_open = _gather(self._calls)
            if calls:
                self._settle(calls)

    def _settle(self, calls: list[_Call]) -> None:
        """Write the calls together; if the database refuses one of them, one by one, so that only it is refused."""
        if self._ended is None:
            try:
                self._transact(calls)
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
                # The file is not touched again; SQLite undoes an open transaction by itself.
                self._ended = RunFailed(f"cannot write the ledger {self._path}: {error}; {REMEDY}")
        _resolve(calls, self._ended)

    def _transact(self, calls: Sequence[_Call]) -> None:
        execute = self._connection.execute
        try:
            execute("BEGIN IMMEDIATE")
            self._refuse_if_succeeded()
            for call in calls:
                self._insert(RECORDS, call.records)
                self._insert(RETIRED, call.retired)
            execute("COMMIT")
            self.num_transactions += 1
        except sqlite3.IntegrityError as error:
            execute("ROLLBACK")
            raise BrokenInvariant(f"the ledger {self._path} refuses {self._counted_before(calls)}") from error

    def _insert(self, into: str, rows: Sequence[tuple[Any, ...]]) -> None:
        for first in range(0, len(rows), ROWS_AT_ONCE):
            some = rows[first : first + ROWS_AT_ONCE]
            row = f"({', '.join('?' * len(some[0]))})"
            values = ", ".join([row] * len(some))
            self._connection.execute(f"INSERT INTO {into} VALUES {values}", list(chain.from_iterable(some)))

    def _counted_before(self, calls: Sequence[_Call]) -> str:
        """What the database objected to, in words."""
        for call in calls:
            for _, name, _, _ in call.records:
                if self._connection.execute("SELECT 1 FROM records WHERE key = ?", (name,)).fetchone():
                    return f"{name}: it is there already"
            for group_id, how in call.retired:
                row = self._connection.execute("SELECT how FROM retired WHERE group_id = ?", (group_id,)).fetchone()
                if row:
                    return f"to end group {group_id} by {how}: it has ended by {row[0]}"
        return "two equal records in one call"

    def _refuse_if_succeeded(self) -> None:
        epoch = read_meta(self._connection, "broker_term")
        if epoch != self.broker_term:
            self._connection.execute("ROLLBACK")
            raise RunFailed(
                f"another broker (epoch {epoch}) has opened the ledger {self._path}; this one (epoch "
                f"{self.broker_term}) must not write any more: keep one of them"
            )


def _row(record: Record) -> Row:
    body = encode(record)
    return type(record).__name__, key(record), body, zlib.crc32(body)


def _gather(calls: SimpleQueue[_Call | None]) -> tuple[list[_Call], bool]:
    """Wait for a call, then take all that are there. False: the queue was closed."""
    gathered: list[_Call] = []
    call = calls.get()
    with suppress(Empty):
        while call is not None:
            gathered.append(call)
            call = calls.get_nowait()
        return gathered, False
    return gathered, True


def _resolve(calls: Sequence[_Call], error: AsyncrlError | None) -> None:
    """Tell the waiting loops, each once."""
    for loop in {call.future.get_loop() for call in calls}:
        with suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            loop.call_soon_threadsafe(_resolve_here, [c for c in calls if c.future.get_loop() is loop], error)


def _resolve_here(calls: Sequence[_Call], error: AsyncrlError | None) -> None:
    for call in calls:
        if call.future.done():  # cancelled
            continue
        if error is None:
            call.future.set_result(None)
        else:
            call.future.set_exception(_again(error))


def _again(error: AsyncrlError) -> AsyncrlError:
    """The same news for one more hearer: a raised exception collects the traceback of whoever raises it."""
    return type(error)(*error.args)
