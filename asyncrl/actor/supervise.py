"""
Child processes: started, watched, restarted within a budget, and ended in order: drain, stop, abort.

    start ─▶ running ─exit─▶ `Verdict` ─restart─▶ budget left? ─yes─▶ start again, after a pause that doubles
                                 └─leave, end        └─no──▶ the caller hears that it stays away

A child is its own session, so that what it started dies with it, and is told by the kernel if its parent dies.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Literal

from msgspec import Struct

from asyncrl.actor.relay import Relay
from asyncrl.errors import BrokenInvariant, ConfigError, LedgerError, RunFailed
from asyncrl.files.disk import needed

PR_SET_PDEATHSIG = 1
FIRST_PAUSE_S = 0.2
MAX_PAUSE_S = 10.0
LAST_WORDS_BYTES = 4096
"""How much of the end of a log is searched for its last line."""
OURS = "asyncrl: "
"""How the sentence begins with which a process of ours says why it ends."""
LATE_S = 2.0
"""For a child to leave that has only just been started."""
FINAL_CODES = (ConfigError.exit_code, LedgerError.exit_code, RunFailed.exit_code)
"""Exit codes of a process that would only end the same way again."""

Verdict = Literal["leave", "restart", "end"]
"""It left as it should; it is to be started again; it would only end the same way again."""


class Exit(Struct, frozen=True):
    """A child has ended, and not as it should."""

    name: str
    code: int
    """Negative for a signal."""
    cause: str
    """In words."""
    restarting: bool
    """It is started again."""


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


def why(last_words: bytes) -> str:
    """Of what a process has said, the sentence of ours it ended with, or else the last line; empty if it was silent."""
    lines = last_words.decode(errors="replace").strip().splitlines()
    # What it started may still complain when the process itself has said why.
    ours = [line.removeprefix(OURS) for line in lines if line.startswith(OURS)]
    return (ours or lines or [""])[-1]


class Child:
    """One child process."""

    def __init__(self, name: str, command: Sequence[str], log: Path | None, environment: Mapping[str, str]) -> None:
        self.name = name
        self.log = log
        """Where its output goes; None for the standard error of this process."""
        self._relay = Relay(LAST_WORDS_BYTES)
        self._command = command
        self._environment = {**os.environ, **environment}
        self._process: asyncio.subprocess.Process | None = None
        self._log_began = 0
        """How long the log was when the running process was started."""
        self._session: int | None = None
        """Of the child and what it started, until it was ended: a number the kernel may give away afterwards."""

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def start(self) -> None:
        """Start it; its output is appended to the log. Raises `RunFailed` if the disk does not take that."""
        with self._output() as output:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
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

    async def end(self, drain_s: float | None) -> None:
        """SIGTERM; after ``drain_s``, if that is not None, SIGKILL to its whole session. Idempotent."""
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
        """Why it ended: the sentence of ours it ended with, or else the last thing it said."""
        return why(self._last_words())

    def _last_words(self) -> bytes:
        if self.log is None:
            return self._relay.tail()
        try:
            with self.log.open("rb") as log:
                log.seek(max(log.seek(0, os.SEEK_END) - LAST_WORDS_BYTES, self._log_began))
                return log.read()
        except OSError:
            return b""

    @contextlib.contextmanager
    def _output(self) -> Iterator[BinaryIO]:
        if self.log is None:
            with self._relay.end() as output:
                yield output
        else:
            with needed(self.log), self.log.open("ab") as log:
                self._log_began = log.tell()
                yield log

    def _kill_session(self) -> None:
        if self._session is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._session, signal.SIGKILL)
            self._session = None


async def keep_alive(
    child: Child,
    budget: RestartBudget,
    *,
    judge: Callable[[int], Awaitable[Verdict]],
    exited: Callable[[Exit], Awaitable[None]],
    is_over: Callable[[], bool],
) -> int:
    """
    Start ``child`` again whenever it ends, within ``budget``; return once it stays away.

    Args:
        judge: What to make of an exit code.
        exited: Told of every end of a child that did not leave as it should.
        is_over: Nothing is started any more.

    Returns:
        The exit code of its last life.

    Raises:
        RunFailed: It cannot be started.
    """
    while True:
        code = await child.wait()
        if (verdict := await judge(code)) == "leave":
            return code
        cause = describe_exit(code) + (f": {child.last_line()}" if code > 0 else "")
        pause_s = budget.spend(time.monotonic()) if verdict == "restart" else None
        await exited(Exit(child.name, code, cause, restarting=pause_s is not None))
        if pause_s is None:
            return code
        await asyncio.sleep(pause_s)
        if is_over():
            return code
        await child.start()
        if is_over():  # While it started: whoever ended the others did not see it.
            await child.end(drain_s=LATE_S)


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
