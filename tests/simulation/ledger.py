"""
The broker's ledger on a simulated disk: transactions are atomic and take random time.

Stand-in for `Ledger` with the same guarantees; fails like it when the disk is full or a record exists already.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from asyncrl.broker.ledger.database import LockWait
from asyncrl.broker.ledger.reader import Head
from asyncrl.broker.ledger.records import AnyRecord, ended_groups, unique_key
from asyncrl.errors import AsyncrlError, BrokenInvariant, LedgerError, RunFailed
from tests.simulation.virtual_time import PROCESS

if TYPE_CHECKING:
    from tests.simulation.disk import Disk

SYNC_S = 0.004
"""Mean seconds of a transaction."""


class LedgerFile:
    """Durable content of a ledger."""

    def __init__(self, disk: "Disk") -> None:
        self.disk = disk
        self.broker_term = 0
        self.records: list[AnyRecord] = []
        self.writer: SimLedger | None = None
        """The last ledger opened on the file."""
        self._keys: set[str] = set()
        self._retired: set[int] = set()

    def write(self, records: Sequence[AnyRecord]) -> None:
        """
        Write all records or none.

        Raises:
            BrokenInvariant: A record exists already, by the unique columns of the real ledger.
        """
        names = [name for record in records if (name := unique_key(record))]
        groups = [group_id for record in records for group_id in ended_groups(record)]
        twice = self._keys.intersection(names) or self._retired.intersection(groups)
        if twice or len(set(names)) < len(names) or len(set(groups)) < len(groups):
            raise BrokenInvariant(f"the ledger refuses {sorted(map(str, twice)) or 'two equal records'}")
        self._keys.update(names)
        self._retired.update(groups)
        self.records.extend(records)
        self.disk.on_commit(records)


class SimLedger:
    """Stand-in for `Ledger`: one transaction at a time for everything queued."""

    def __init__(self, file: LedgerFile) -> None:
        if file.writer:
            file.writer.died()
        file.writer = self
        file.broker_term += 1
        self.broker_term = file.broker_term
        self.found = list(file.records)
        """The records that `read_records` would yield."""
        self._file = file
        self._process = PROCESS.get()
        self._waiting: list[tuple[list[AnyRecord], asyncio.Future[None]]] = []
        self._writing: list[tuple[list[AnyRecord], asyncio.Future[None]]] = []
        self._ended: AsyncrlError | None = None

    run_id = "simulated"
    lock_wait = LockWait()
    """Nobody locks a simulated ledger."""

    @property
    def head(self) -> Head:
        return Head(len(self._file.records), "")

    def append(self, records: Iterable[AnyRecord]) -> asyncio.Future[None]:
        if self._ended:
            raise RunFailed(str(self._ended))
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((list(records), future))
        self._begin()
        return future

    async def commit(self, records: Iterable[AnyRecord]) -> None:
        await self.append(records)

    def leave(self) -> None:
        """No other program locks it."""

    def close(self) -> None:
        """Write all queued records in one transaction, unless the process is dead."""
        if self._process.is_alive and not self._ended:
            self._writing += self._waiting
            self._write()
        self._ended = self._ended or LedgerError("the ledger was closed")

    def died(self) -> None:
        """Complete a transaction that was running when the process died, with probability 1/2."""
        if not self._process.is_alive and self._writing and self._file.disk.dice.random() < 0.5:
            self._write()

    def _begin(self) -> None:
        if not self._writing:
            self._writing, self._waiting = self._waiting, []
            delay_s = self._file.disk.dice.expovariate(1 / SYNC_S)
            asyncio.get_running_loop().call_later(delay_s, self._end)

    def _end(self) -> None:
        if self._process.is_alive and not isinstance(self._ended, LedgerError):
            self._write()
            if self._waiting:
                self._begin()

    def _write(self) -> None:
        done, self._writing = self._writing, []
        error = self._ended
        if error is None and self._file.disk.is_full:
            error = self._ended = RunFailed("cannot write the ledger: the disk is full")
        if error is None:
            try:
                self._file.write([record for records, _ in done for record in records])
            except BrokenInvariant as refusal:
                error = refusal
        for _, future in done:
            if not future.done():
                future.set_result(None) if error is None else future.set_exception(type(error)(str(error)))
