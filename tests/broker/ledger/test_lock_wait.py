"""A lock of another program is waited for, and not forever once the ledger is being left."""

import os
import sqlite3
from pathlib import Path

import pytest

from asyncrl.broker.ledger.lock_wait import LockWait, holder, is_lock
from asyncrl.errors import LedgerError


def refusal(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = code
    return error


class Clock:
    """Time that passes only in pauses, a minute each."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def sleep(self, _: float) -> None:
        self.now_s += 60.0

    def wait(self) -> LockWait:
        return LockWait(lambda: self.now_s, self.sleep)


def test_a_lock_is_waited_for_as_long_as_it_is_held() -> None:
    clock, told = Clock(), []
    wait = clock.wait()

    def attempt() -> str:
        told.append(wait.waited_s)
        if len(told) < 1000:
            raise refusal(sqlite3.SQLITE_BUSY)
        return "written"

    assert wait.retry(attempt) == "written"
    assert told[:4] == [0, 60, 120, 180]
    assert told[-1] == 999 * 60
    assert wait.waited_s == 0
    assert not wait.has_given_up


def test_who_leaves_waits_no_longer_than_said() -> None:
    clock = Clock()
    wait = clock.wait()
    attempts = []

    def attempt() -> None:
        attempts.append(clock.now_s)
        if len(attempts) == 3:
            wait.leave(within_s=90)
            wait.leave(within_s=600)
        raise refusal(sqlite3.SQLITE_BUSY)

    with pytest.raises(sqlite3.OperationalError, match="locked"):
        wait.retry(attempt)
    assert attempts == [100, 160, 220, 280, 340]
    assert wait.has_given_up


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT])
def test_what_is_no_lock_is_raised_at_once(code: int) -> None:
    def attempt() -> None:
        raise refusal(code)

    wait = Clock().wait()
    with pytest.raises(sqlite3.OperationalError):
        wait.retry(attempt)
    assert not wait.has_given_up


def test_a_lock_is_recognized_in_the_error_that_was_made_of_it() -> None:
    made = LedgerError("cannot use the ledger")
    made.__cause__ = refusal(261)  # SQLITE_BUSY_RECOVERY
    assert is_lock(made)
    assert not is_lock(LedgerError("cannot use the ledger"))


LINES = """\
1: FLOCK  ADVISORY  WRITE 9 08:01:{index} 0 EOF
2: POSIX  ADVISORY  READ {process} 08:01:{index} 123 123
3: POSIX  ADVISORY  WRITE 77 08:01:1 120 120
3: -> POSIX  ADVISORY  WRITE 78 08:01:{index} 120 120
"""


def test_the_process_that_has_the_lock_is_named(tmp_path: Path) -> None:
    ledger, locks = tmp_path / "ledger.sqlite", tmp_path / "locks"
    assert holder(ledger, locks) == "another program"
    (tmp_path / "ledger.sqlite-shm").touch()
    index = (tmp_path / "ledger.sqlite-shm").stat().st_ino
    others = "\n".join(LINES.format(index=index, process=os.getppid()).splitlines()[1:])
    locks.write_text(others)
    assert holder(ledger, locks) == "another program"
    locks.write_text(f"{others}\n4: POSIX  ADVISORY  READ {os.getppid()} 08:01:{index} 120 120\n")
    assert holder(ledger, locks).startswith(f"process {os.getppid()} (")
    locks.write_text(f"4: POSIX  ADVISORY  WRITE {os.getpid()} 08:01:{index} 120 120\n")
    assert holder(ledger, locks) == "another program", "this process itself"
