"""One running worker of environments: it is started, sent calls, watched, and killed."""

import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

import asyncrl.environment.worker
from asyncrl import plug_in
from asyncrl.config.sections.environment import Environment
from asyncrl.environment.calls import Call, culprits, overdue, running
from asyncrl.environment.frames import FrameReader, FromWorker, NotAFrame, encode
from asyncrl.environment.interface import Description
from asyncrl.errors import ConfigError, EnvironmentFailed
from asyncrl.processes.keeper import Limits
from asyncrl.processes.kept import KeptProcess

PROGRAM = Path(asyncrl.environment.worker.__file__).with_name("start.py")
START_S = 120.0
"""Seconds to import the environment and to start its servers."""
LOOK_SHARE = 8
"""Looks for late calls in ``call_s``; and at least one a second."""
FOREIGN = ("PYTHONPATH", "PYTHONHOME")
"""Variables that would lead another interpreter to the packages of ours."""


class Loss(Struct, frozen=True):
    """End of a worker."""

    reason: str
    culprits: list[Call]
    """Calls that it ended with. Those of a worker that died are suspects only."""
    has_hung: bool


class LostInLoading(ConfigError):
    """A worker ended while it loaded the environment: the code may have ended it, or somebody killed it."""


class WorkerProcess:
    """``on_loss`` is called once, when the worker hangs or dies; all of its calls must be failed then."""

    def __init__(self, process: KeptProcess, call_s: float, on_loss: Callable[[Loss], None]) -> None:
        self._process = process
        self._reader = FrameReader(process.stdout)
        self._call_s = call_s
        self._on_loss = on_loss
        self._clock = asyncio.get_running_loop().time
        self._outgoing: list[bytes] = []
        self._num_calls = 0
        self._heard_at = self._clock()
        self._tasks: list[asyncio.Task[None]] = []
        self.calls: dict[int, Call] = {}
        """Unanswered calls by their numbers."""
        self.loss: Loss | None = None

    @classmethod
    async def start(
        cls,
        environment: Environment,
        on_loss: Callable[[Loss], None],
        *,
        variables: Mapping[str, str],
        output_bytes: int,
    ) -> "tuple[WorkerProcess, Description]":
        """Start a worker; raises `ConfigError`, with its message, if it cannot load the environment."""
        limits = Limits("environment", environment.memory_bytes, environment.processes, environment.file_bytes)
        command = [*interpreter(environment.python), str(PROGRAM)]
        try:
            process = await KeptProcess.start(command, limits, output_bytes, variables, has_folder=True)
        except OSError as error:
            raise ConfigError(f"cannot start a worker of environments: {error.strerror}") from error
        worker = cls(process, environment.call_s, on_loss)
        try:
            description = await worker._load(environment)
        except BaseException:
            await worker.kill()
            raise
        worker._tasks = [asyncio.create_task(worker._listen()), asyncio.create_task(worker._watch())]
        return worker, description

    def send(self, episode: str, method: str, frame: Mapping[str, Any], *, is_limited: bool) -> Call:
        """Send a call; its future gives the encoded answer."""
        now = self._clock()
        answer = asyncio.get_running_loop().create_future()
        self._num_calls += 1
        call = self.calls[self._num_calls] = Call(episode, method, answer, now, now if is_limited else None)
        self._write(encode({"n": self._num_calls, "call": method, **frame}))
        return call

    def cancel(self, call: Call) -> None:
        """Cancel a call in the worker, which has ``call_s`` to end it."""
        number = next((number for number, known in self.calls.items() if known is call), None)
        if number is not None:
            call.limited_from = self._clock() if call.limited_from is None else call.limited_from
            self._write(encode({"n": number, "cancel": True}))

    def fail(self, error: Callable[[Call], EnvironmentFailed]) -> None:
        """Fail all unanswered calls."""
        for call in self.calls.values():
            if not call.answer.done():
                call.answer.set_exception(error(call))
                call.answer.exception()  # one that nobody waits for any more is no warning
        self.calls.clear()

    async def kill(self) -> None:
        """Kill the worker with all that it has started. Idempotent."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._process.kill()

    def _write(self, frame: bytes) -> None:
        """Write the frames of one turn of the loop at once."""
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(frame)

    def _flush(self) -> None:
        if not self._process.stdin.is_closing():
            self._process.stdin.write(b"".join(self._outgoing))
        self._outgoing.clear()

    async def _load(self, environment: Environment) -> Description:
        fields = ("function", "tools", "options", "call_s")
        self._write(encode({"load": {name: getattr(environment, name) for name in fields}}))
        try:
            async with asyncio.timeout(START_S):
                frames: list[FromWorker] = []
                while not frames:
                    frames = await self._reader.read()
        except TimeoutError as error:
            raise ConfigError(f"{named(environment)} was not loaded within {START_S:g} s") from error
        except (EOFError, NotAFrame) as error:
            cause = await self._process.cause()
            raise LostInLoading(f"{named(environment)} ended its process when it was loaded: {cause}") from error
        if (loaded := frames[0].loaded) is None:
            raise ConfigError(frames[0].refused or f"{named(environment)} wrote to the pipe of its worker")
        return loaded

    async def _listen(self) -> None:
        try:
            while True:
                frames = await self._reader.read()
                self._heard_at = self._clock()
                for frame in frames:
                    self._receive(frame)
        except (EOFError, NotAFrame):
            reason = await self._process.cause()
            self._lose(Loss(reason, running(self.calls.values()), has_hung=False))

    def _receive(self, frame: FromWorker) -> None:
        call = self.calls.get(frame.n)
        if call is None:
            raise NotAFrame  # a number that was never sent, or is answered
        if frame.begun:
            call.begun_at = self._heard_at
            return
        del self.calls[frame.n]
        if call.answer.done():
            return
        if frame.error:
            call.answer.set_exception(EnvironmentFailed(frame.error, retryable=frame.retryable))
        else:
            call.answer.set_result(frame.answer)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(min(self._call_s / LOOK_SHARE, 1.0))
            if late := overdue(self.calls.values(), self._heard_at, self._call_s, self._clock()):
                guilty = culprits(self.calls.values(), late)
                methods = ", ".join(sorted({call.method for call in guilty})) or "the worker"
                limit = f"environment.call_s = {self._call_s:g}"
                self._lose(
                    Loss(f"{methods} took longer than {limit}, and its worker was killed", guilty, has_hung=True)
                )
                return

    def _lose(self, loss: Loss) -> None:
        if self.loss is None:
            self.loss = loss
            self._on_loss(loss)


def interpreter(python: str) -> list[str]:
    """Command that runs an interpreter; another one than ours is not led to our packages."""
    if not python:
        return [sys.executable]
    found = shutil.which(python)
    if found is None:
        raise ConfigError(f"environment.python is {python!r}, but there is no such program")
    unset = [part for name in FOREIGN for part in ("-u", name)]
    return [shutil.which("env") or "/usr/bin/env", *unset, os.path.abspath(found)]  # noqa: PTH100  links are kept


def named(environment: Environment) -> str:
    """Name the environment as the configuration does."""
    if environment.function:
        return f"environment.function {environment.function!r}"
    if environment.command:
        return f"environment.command {environment.command}"
    return f"environment.tools {environment.tools}"


def require_allowed(environment: Environment) -> None:
    """Raise `ConfigError` if the operator of this node named what it may run, and the environment is not of that."""
    if environment.python:
        plug_in.require_program(environment.python, setting="environment.python")
    for tool in environment.tools:
        if tool.startswith("mcp:"):
            plug_in.require_program(tool[len("mcp:") :].split(maxsplit=1)[0], setting="environment.tools")
