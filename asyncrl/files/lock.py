"""Locks that one process holds for its life; the kernel releases them however it ends."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncrl.errors import LinkError
from asyncrl.files.disk import needed

POLL_S = 0.05


@contextmanager
def locked(
    path: Path,
    held: str,
    wait_s: float = 0.0,
    *,
    remedy: str = "",
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """
    Hold the lock file at ``path``, which is created if it is missing.

    Args:
        held: Sentence for the error if another process holds the lock; its number is appended.
        wait_s: Time for that process to end.
        remedy: Advice that ends the sentence.

    Raises:
        LinkError: Another process still holds the lock.
        RunFailed: The file cannot be opened.
    """
    with needed(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline_s = clock() + wait_s
        while not try_lock(descriptor):
            if clock() >= deadline_s:
                owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
                raise LinkError(f"{held} (process {owner or 'unknown'}){f'; {remedy}' if remedy else ''}")
            sleep(POLL_S)
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def is_locked(path: Path, locks: Path = Path("/proc/locks")) -> bool:
    """True if another process holds the lock. Of another user's, which cannot be tried, the kernel's list tells."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    except PermissionError:
        listed = f":{path.stat().st_ino} 0 EOF"
        return any(line.endswith(listed) and " FLOCK " in line for line in locks.read_text().splitlines())
    try:
        return not try_lock(descriptor)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Lock an open file or folder until it is closed; False if another process holds the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
