"""
Processes that share one import: an importer loads modules once, which takes seconds, and becomes each process by fork.

    parent ── command, environment, output ──▶ importer ── fork ──▶ process
       ▲                                          │ parent of them all
       └── pid, and later its exit code ──────────┘

The importer forks while it has a single thread: a lock that another one holds would stay locked in the copy. If it
dies, its processes are ended.
"""

import asyncio
import ctypes
import gc
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from asyncrl.workers.child import ChildProcess, dies_with, module_command

MAX_BYTES = 1 << 20
"""Longest message; most kernels refuse one that is shorter."""
ROOM = " " * 1024
"""Last argument of the importer. Its memory holds the command lines of its processes, which are longer than its own."""


class ForkRequest(Struct):
    """A process to become: that of a `module_command` in this environment."""

    command: list[str]
    environment: dict[str, str]


class ForkAnswer(Struct):
    """A process was started, or has ended."""

    pid: int
    code: int | None = None
    """Exit code, negative for a signal; None when it was started."""


@contextmanager
def uncollected() -> Iterator[None]:
    """
    Import without the garbage collector, which finds nothing then and takes a fifth of the time.

    It looks through what was imported at no later time, either, and copies none of the memory that processes share.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


# ── parent ────────────────────────────────────────────────────────────────────────────────────


class Importer:
    """
    A process that imports ``modules`` from now on, and then becomes others.

    Args:
        environment: Variables beside those of this process, which a library may read while it is imported.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(
                module_command(__name__, str(theirs.fileno()), *modules, ROOM),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **environment},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                preexec_fn=dies_with(os.getpid()),  # noqa: PLW1509  takes no lock between fork and exec
            )
        self._asked: deque[asyncio.Future[Forked | None]] = deque()
        self._forked: dict[int, Forked] = {}

    async def fork(
        self, command: Sequence[str], environment: Mapping[str, str], output: BinaryIO
    ) -> ChildProcess | None:
        """
        Start the process of a `module_command` once everything is imported; `listen` hears of it.

        Returns None if the importer is gone, for instance because a module cannot be imported.
        """
        try:
            request = msgspec.json.encode(ForkRequest(list(command), dict(environment)))
            socket.send_fds(self._control, [request], [output.fileno()])
        except (OSError, ValueError):  # it is gone, or the environment is no text, or longer than a message
            return None
        self._asked.append(asyncio.get_running_loop().create_future())
        return await self._asked[-1]

    async def listen(self) -> None:
        """Hear what becomes of the processes, as long as the importer lives; then end those that are left."""
        try:
            while message := await asyncio.get_running_loop().sock_recv(self._control, MAX_BYTES):
                self._hear(msgspec.json.decode(message, type=ForkAnswer))
        except OSError:  # it was killed
            return
        finally:
            for asked in self._asked:
                if not asked.done():
                    asked.set_result(None)
            for forked in self._forked.values():
                forked.kill()

    def close(self) -> None:
        """End the importer, and with it what it has started."""
        self._process.kill()
        self._process.wait()
        self._control.close()

    def _hear(self, answer: ForkAnswer) -> None:
        if answer.code is not None:
            self._forked.pop(answer.pid).end(answer.code)
            return
        self._forked[answer.pid] = forked = Forked(answer.pid)
        if (asked := self._asked.popleft()).cancelled():
            forked.terminate()
        else:
            asked.set_result(forked)


class Forked:
    """A `ChildProcess` of an importer."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def returncode(self) -> int | None:
        return self._code.result() if self._code.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._code)

    def terminate(self) -> None:
        if not self._code.done():
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill it after the importer, which alone could tell how it ends."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.end(-signal.SIGKILL)

    def end(self, code: int) -> None:
        self._code.set_result(code)


# ── importer ──────────────────────────────────────────────────────────────────────────────────


def main() -> None:
    """Import the modules that the command line names, and become a process for each request."""
    control = socket.socket(fileno=int(sys.argv[1]))
    with uncollected():
        for module in sys.argv[2:-1]:
            import_module(module)
    dies = dies_with(os.getpid())
    if len(list(Path("/proc/self/task").iterdir())) == 1 and (found := _serve(control)):
        request, output = found
        if dies:
            dies()
        _become(request, output)


def _serve(control: socket.socket) -> tuple[ForkRequest, int] | None:
    """Fork for each request. Returns it and its output in the new process, and None here once the parent is gone."""
    processes: dict[int, int] = {}
    """Pid by its descriptor."""
    with control, select.epoll() as events:
        events.register(control, select.EPOLLIN)
        while True:
            for ready, _ in events.poll():
                if pid := processes.pop(ready, 0):
                    events.unregister(ready)  # closing does not while a copy of it is open in a new process
                    os.close(ready)
                    answer = ForkAnswer(pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                else:
                    message, outputs, *_ = socket.recv_fds(control, MAX_BYTES, 1)
                    if not message:
                        return None
                    if (pid := os.fork()) == 0:
                        for process in processes:
                            os.close(process)
                        return msgspec.json.decode(message, type=ForkRequest), outputs[0]
                    os.close(outputs[0])
                    process = os.pidfd_open(pid)
                    processes[process] = pid
                    events.register(process, select.EPOLLIN)
                    answer = ForkAnswer(pid)
                control.send(msgspec.json.encode(answer))


def _become(request: ForkRequest, output: int) -> None:
    os.setsid()
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    os.environ.clear()
    os.environ.update(request.environment)
    _show(request.command)
    _, _, _, module, *sys.argv[1:] = request.command
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _show(command: Sequence[str]) -> None:
    """Have ``ps`` show this command: the memory of the importer's own is written over."""
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    words = b"\0".join(map(os.fsencode, command))
    ctypes.memmove(start, words[: end - start - 1].ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    main()
