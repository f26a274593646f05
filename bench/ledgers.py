"""
Three ways to make the same records durable: the broker's ledger, a plain SQLite table, and an append-only file.

Each trajectory has two records, `Result` and `Rewarded`. One call writes a batch of trajectories and returns when they
are on disk, like the broker, which writes records that arrive during a transaction in the next one. The broker's ledger
also encodes the records, rejects duplicates and stores a checksum of each; the other two receive encoded bytes.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct
from payloads import SUMMARY

from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.broker.ledger.records import Record, Result, Rewarded, encode
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import Unit

GROUP_SIZE = 8


class Rate(Struct, frozen=True):
    trajectories_per_s: float
    cpu_us: float
    """CPU microseconds per trajectory."""


Keep = Callable[[Path, int, float], Rate]
"""(directory to write to, trajectories per call, duration in seconds) -> rate."""


def ours(directory: Path, together: int, seconds: float) -> Rate:
    """Write with the broker's ledger."""
    return asyncio.run(_ours(directory, together, seconds))


async def _ours(directory: Path, together: int, seconds: float) -> Rate:
    ledger = Ledger(directory / "ledger.sqlite")
    watch = _Watch(seconds)
    while watch.is_running:
        await ledger.commit(_records(watch.num, together))
        watch.num += together
    rate = watch.rate()
    ledger.close()
    return rate


def sqlite_table(directory: Path, together: int, seconds: float) -> Rate:
    """Write to a table with one column and no index, in WAL mode, with every commit synced."""
    bodies = _bodies(together)
    connection = sqlite3.connect(directory / "table.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE records (body BLOB NOT NULL)")
    watch = _Watch(seconds)
    while watch.is_running:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO records VALUES (?)", [(body,) for body in bodies])
        connection.execute("COMMIT")
        watch.num += together
    rate = watch.rate()
    connection.close()
    return rate


def appended_file(directory: Path, together: int, seconds: float) -> Rate:
    """Append to a file with one write and one fdatasync per call."""
    call = b"".join(_bodies(together))
    with (directory / "records").open("ab", buffering=0) as file:
        watch = _Watch(seconds)
        while watch.is_running:
            file.write(call)
            os.fdatasync(file.fileno())
            watch.num += together
        return watch.rate()


class _Watch:
    """Counts trajectories for a fixed time that starts at construction."""

    def __init__(self, seconds: float) -> None:
        self.num = 0
        self._start_s, self._start_cpu_s = time.perf_counter(), time.process_time()
        self._ends_s = self._start_s + seconds

    @property
    def is_running(self) -> bool:
        return time.perf_counter() < self._ends_s

    def rate(self) -> Rate:
        seconds, cpu_s = time.perf_counter() - self._start_s, time.process_time() - self._start_cpu_s
        return Rate(self.num / seconds, 1e6 * cpu_s / self.num)


def _records(first: int, num: int) -> list[Record]:
    """Records of ``num`` trajectories, the first with index ``first``."""
    units = [Unit(*divmod(ordinal, GROUP_SIZE)) for ordinal in range(first, first + num)]
    results = [Result(unit, (1 << 32) + unit.group_id, SpoolRef("spool", 0, 0, 20_000, 0), SUMMARY) for unit in units]
    return [*results, *(Rewarded(unit, 1.0, {"correct": 1.0}) for unit in units)]


def _bodies(num: int) -> list[bytes]:
    return [encode(record) for record in _records(1 << 16, num)]
