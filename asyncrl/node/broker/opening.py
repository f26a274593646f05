"""
Opening of a run's ledger: in a thread, because another program may have locked it, and the broker must hear meanwhile
that it is to stop.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from asyncrl.broker.actor import LOCKED_S
from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.broker.ledger.lock_wait import LockWait, holder
from asyncrl.log import get_logger

log = get_logger()

LOOK_S = 0.1
"""Seconds between two looks at whether the ledger is open."""


async def open_ledger(
    path: Path, prepare: Callable[[Ledger], None], stopping: asyncio.Event, lock_wait: LockWait | None = None
) -> Ledger | None:
    """
    Open the ledger at ``path``, and call ``prepare``, which may write facts of the run into it.

    Returns None if ``stopping`` was set while another program kept it locked. Raises as `Ledger` and ``prepare``.
    """
    lock_wait = lock_wait or LockWait()
    opening = asyncio.create_task(asyncio.to_thread(_opened, path, prepare, lock_wait))
    is_told = False
    try:
        while not opening.done():
            await asyncio.wait([opening], timeout=LOOK_S)
            if stopping.is_set():
                lock_wait.leave(0.0)
            if lock_wait.waited_s >= LOCKED_S and not is_told:
                log.warning("ledger.locked", path=str(path), by=holder(path))
                is_told = True
    finally:
        if not opening.done():
            lock_wait.leave(0.0)
    if stopping.is_set() and lock_wait.has_given_up:
        log.warning("ledger.left_locked", path=str(path), cause=str(opening.exception()))
        return None
    return opening.result()


def _opened(path: Path, prepare: Callable[[Ledger], None], lock_wait: LockWait) -> Ledger:
    ledger = Ledger(path, lock_wait)
    try:
        prepare(ledger)
    except BaseException:
        ledger.close()
        raise
    return ledger
