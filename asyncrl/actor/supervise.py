"""
Child processes: started, watched, restarted within a budget, and ended in order: drain, stop, abort.

    start ─▶ running ─exit─▶ budget left? ─yes─▶ start again, after a pause that doubles
                                 └─no──▶ the caller ends everything

A child is its own session, so that what it started dies with it, and is told by the kernel if its parent dies.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from asyncrl.errors import BrokenInvariant
from asyncrl.observe.disk import needed

PR_SET_PDEATHSIG = 1
FIRST_PAUSE_S = 0.2
MAX_PAUSE_S = 10.0
LAST_WORDS_BYTES = 4096
"""How much of the end of a log is searched for its last line."""


class RestartBudget:
    """At most ``max_restarts`` within any ``window_s``."""

    def __init__(self, max_restarts: int, window_s: float) -> None:
        self._max_restarts = max_restarts
        self._window_s = window_s
        self._spent: deque[float] = deque()

    def spend(self, now_s: float) -> float | None:
        """Seconds to wait before the next restart, or None if there may be none."""
        while self._spent and now_s - self._spent[0] > self._window_s:
            self._spent.popleft()
        if len(self._spent) >= self._max_restarts:
            return None
        self._spent.append(now_s)
        doublings = min(len(self._spent) - 1, 10)
        return min(FIRST_PAUSE_S * 2.0**doublings, MAX_PAUSE_S)


class Child:
    """One child process."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.log = log
        """Where its output goes."""
        self._command = command
        self._environment = {**os.environ, **environment}
        self._process: asyncio.subprocess.Process | None = None
        self._session: int | None = None
        """Of the child and what it started, until it was ended: a number the kernel may give away afterwards."""

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def start(self) -> None:
        """Start it; its output is appended to the log. Raises `RunFailed` if the disk does not take that."""
        with needed(self.log), self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
                preexec_fn=_dies_with(os.getpid()),
            )
        self._session = self._process.pid

    async def wait(self) -> int:
        """The exit code, negative for a signal. What the child had started has ended too."""
        if self._process is None:
            raise BrokenInvariant(f"{self.name} was never started")
        code = await self._process.wait()
        self._kill_session()
        return code

    async def end(self, drain_s: float) -> None:
        """SIGTERM; after ``drain_s`` SIGKILL to its whole session. Idempotent."""
        if self._process is None:
            return
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), drain_s)
        self._kill_session()
        await self._process.wait()

    def last_line(self) -> str:
        """The last thing it said: usually why it ended."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(log.seek(0, os.SEEK_END) - LAST_WORDS_BYTES, 0))
                lines = log.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1].removeprefix("asyncrl: ") if lines else ""

    def _kill_session(self) -> None:
        if self._session is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._session, signal.SIGKILL)
            self._session = None


def describe_exit(code: int) -> str:
    """``exited with 78``, or ``was killed by SIGKILL``."""
    if code >= 0:
        return f"exited with {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _dies_with(parent: int) -> Callable[[], None] | None:
    """To be run in the child before exec: an orphan would hold ports, memory and devices."""
    if sys.platform != "linux":
        return None
    # Looked up here: after a fork, the loader's lock may be held by a thread that is gone.
    prctl = ctypes.CDLL(None).prctl

    def die_with_parent() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # It died before the line above.
            os.kill(os.getpid(), signal.SIGTERM)

    return die_with_parent
