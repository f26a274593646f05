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
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
FIRST_PAUSE_S = 0.2
MAX_PAUSE_S = 10.0


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
        return min(FIRST_PAUSE_S * 2 ** (len(self._spent) - 1), MAX_PAUSE_S)


class Child:
    """One child process."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.log = log
        """Where its output goes."""
        self._command = command
        self._environment = {**os.environ, **environment}
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def start(self) -> None:
        """Start it; its output is appended to the log."""
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    async def wait(self) -> int:
        """The exit code, negative for a signal."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was never started")
        return await self._process.wait()

    async def end(self, drain_s: float) -> None:
        """SIGTERM; after ``drain_s`` SIGKILL to its whole session. Idempotent."""
        if self._process is None:
            return
        if self._process.returncode is None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), drain_s)
        self._signal_session(signal.SIGKILL)
        await self._process.wait()

    def last_line(self) -> str:
        """The last thing it said: usually why it ended."""
        try:
            lines = self.log.read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1].removeprefix("asyncrl: ") if lines else ""

    def _signal(self, number: signal.Signals) -> None:
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _signal_session(self, number: signal.Signals) -> None:
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def describe_exit(code: int) -> str:
    """``exited with 78``, or ``was killed by SIGKILL``."""
    if code >= 0:
        return f"exited with {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _die_with_parent() -> None:
    """Runs in the child before exec: an orphan would hold ports, memory and devices."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
