"""
Waiting for another program's lock on the ledger, such as that of `sqlite3` with an open transaction.

    locked ─▶ the same transaction again, for as long as it takes ─▶ written
          └─▶ once the ledger is being left: a few seconds more ─▶ the error

A lock loses nothing: what is not written is not acknowledged, so the nodes' credits run out and the run stands still
until the lock is gone. Readers of the ledger take no such lock.
"""

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Done = TypeVar("Done")

TRY_S = 0.2
"""Time for which SQLite itself waits for a lock, in small steps, before it gives up a transaction."""
PAUSE_S = 0.05
"""Pause before the next one: SQLite refuses some locks without waiting."""
LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL)
WRITER, RECOVERY = 120, 122
"""First and last byte of the WAL index that a writer locks (sqlite.org/walformat.html)."""


class LockWait:
    """
    One ledger's waits. `retry` belongs to the thread that uses the ledger, all else to any thread.

    Args:
        clock: Gives monotonic seconds.
        sleep: Blocks the thread.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._since_s: float | None = None
        self._until_s = float("inf")
        self.has_given_up = False
        """True once a transaction was given up because of a lock."""

    @property
    def waited_s(self) -> float:
        """Seconds for which the present lock has been waited for; 0 without one."""
        return 0.0 if (since_s := self._since_s) is None else self._clock() - since_s

    def leave(self, within_s: float) -> None:
        """Wait for ``within_s`` seconds more at most; an earlier, shorter limit stays."""
        self._until_s = min(self._until_s, self._clock() + within_s)

    def retry(self, attempt: Callable[[], Done]) -> Done:
        """Call ``attempt`` again and again while the ledger is locked. Raises as ``attempt``."""
        try:
            while True:
                try:
                    return attempt()
                except Exception as error:
                    if not is_lock(error):
                        raise
                    self._since_s = self._clock() if self._since_s is None else self._since_s
                    if self._clock() >= self._until_s:
                        self.has_given_up = True
                        raise
                self._sleep(PAUSE_S)
        finally:
            self._since_s = None


def is_lock(error: BaseException | None) -> bool:
    """True for an error of SQLite, or one raised from it, that says that another program has locked the database."""
    while error is not None and not isinstance(error, sqlite3.Error):
        error = error.__cause__
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in LOCKED


def holder(ledger: Path, locks: Path = Path("/proc/locks")) -> str:
    """Process that has locked the ledger, in words; "another program" if the kernel does not tell."""
    try:
        index = ledger.with_name(f"{ledger.name}-shm").stat().st_ino
        lines = locks.read_text().splitlines()
    except OSError:
        return "another program"
    for line in lines:
        # 7: POSIX  ADVISORY  WRITE 4711 08:01:131 120 120
        fields = line.split()
        if len(fields) != 8 or not fields[4].isdecimal() or int(fields[5].rpartition(":")[2]) != index:
            continue
        first, last = int(fields[6]), WRITER if fields[7] == "EOF" else int(fields[7])
        if first <= RECOVERY and last >= WRITER and int(fields[4]) not in (0, os.getpid()):
            return f"process {fields[4]}{_name(fields[4])}"
    return "another program"


def _name(process: str) -> str:
    try:
        return f" ({Path('/proc', process, 'comm').read_text().strip()})"
    except OSError:
        return ""
