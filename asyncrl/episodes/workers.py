"""
The pool's side of a worker of environments: it is started, sent calls, watched, and replaced when it is lost.

    EnvironmentSlot ─▶ EnvironmentProcess ── WorkerCall, WorkerCall, ... ─▶ worker: `asyncrl.episodes.worker.server`
"""

import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct

import asyncrl.episodes.worker
from asyncrl import plug_in
from asyncrl.config.sections.environment import Environment
from asyncrl.episodes.environment import Description
from asyncrl.errors import ConfigError, EnvironmentFailed
from asyncrl.workers.frames import NotAFrame, framed
from asyncrl.workers.keeper import GuardLimits
from asyncrl.workers.worker import LOST_IN_A_ROW, LostInLoading, WorkerProcess, WorkerProgram, WorkerSlot

# ── calls ─────────────────────────────────────────────────────────────────────────────────────
# Calls that a worker has not answered, and which of them is to blame when the worker hangs or dies.
#
# A worker says when it begins a call. A call that has begun may take ``call_s``; one that waits behind others may
# wait as long as the worker gives signs of life. Pure bookkeeping: time is an argument, in seconds of any one clock.


class WorkerCall(Struct, eq=False):
    episode: str
    """Name of the episode."""
    method: str
    answer: "asyncio.Future[Raw]"
    sent_at: float
    limited_from: float | None
    """Time from which ``call_s`` counts for a call without a limit, once it is cancelled; None: not limited."""
    begun_at: float | None = None

    def deadline(self, heard_at: float, call_s: float) -> float:
        """Time at which the call hangs; ``heard_at`` is that of the worker's last words."""
        if self.limited_from is None:
            return float("inf")
        since = max(self.sent_at, heard_at) if self.begun_at is None else self.begun_at
        return max(since, self.limited_from) + call_s


def overdue(calls: Iterable[WorkerCall], heard_at: float, call_s: float, now: float) -> list[WorkerCall]:
    """Calls past their deadline."""
    return [call for call in calls if call.deadline(heard_at, call_s) < now]


def culprits(calls: Iterable[WorkerCall], late: Iterable[WorkerCall]) -> list[WorkerCall]:
    """Calls that a worker hung with: those that began and are late; if none, all that began."""
    return [call for call in late if call.begun_at is not None] or running(calls)


def running(calls: Iterable[WorkerCall]) -> list[WorkerCall]:
    """Calls that have begun and are not answered."""
    return [call for call in calls if call.begun_at is not None]


class Suspects:
    """
    Episodes that had a call running when a worker died, though nobody hung.

    One alone is to blame. Of several, each may be, so all are continued; one that is there the third time is to blame.
    """

    MOST = 3

    def __init__(self) -> None:
        self._deaths: dict[str, int] = {}

    def blame(self, names: Iterable[str]) -> set[str]:
        """Count a death with these episodes running; return those to blame."""
        found = set(names)
        for name in found:
            self._deaths[name] = self._deaths.get(name, 0) + 1
        return {name for name in found if len(found) == 1 or self._deaths[name] >= self.MOST}

    def acquit(self, name: str) -> None:
        """Forget an episode that ended well."""
        self._deaths.pop(name, None)


# ── messages ──────────────────────────────────────────────────────────────────────────────────
# The pool's view of what `asyncrl.episodes.worker.server` says: see there for the messages.
#
# The environment runs in the process that answers, so it can write what it likes there: neither a number nor a value is
# trusted.

MAX_ANSWER_BYTES = 256 << 20
"""Longest message of a worker; a snapshot is the largest thing in one."""


class FromWorker(Struct, frozen=True):
    """A message of a worker; one of its fields says what it is."""

    n: int = -1
    """Number of the call."""
    begun: bool = False
    answer: Raw = Raw()
    """Still encoded: its type is that of the call."""
    error: str = ""
    retryable: bool = True
    lost: bool = False
    """The episode was lost with its container."""
    loaded: Description | None = None
    refused: str = ""


_decoder = msgspec.json.Decoder(FromWorker)
_encoder = msgspec.json.Encoder()


def encode(message: Any) -> bytes:
    """Encode a message to a worker as a frame."""
    return framed(_encoder.encode(message))


def decode(message: bytes) -> FromWorker:
    """Decode a message of a worker; raises `msgspec.DecodeError` or `UnicodeDecodeError`."""
    return _decoder.decode(message)


# ── worker process ────────────────────────────────────────────────────────────────────────────

PROGRAM = Path(asyncrl.episodes.worker.__file__).with_name("start.py")
START_S = 120.0
"""Seconds to import the environment and to start its servers."""
LOOK_SHARE = 8
"""Looks for late calls in ``call_s``; and at least one a second."""
FOREIGN = ("PYTHONPATH", "PYTHONHOME")
"""Variables that would lead another interpreter to the packages of ours."""


class WorkerLoss(Struct, frozen=True):
    """End of a worker."""

    reason: str
    culprits: list[WorkerCall]
    """Calls that it ended with. Those of a worker that died are suspects only."""
    has_hung: bool


class EnvironmentProcess:
    """
    One running worker; made by `start`.

    ``on_loss`` is called once, when the worker hangs or dies; all of its calls must be failed then.
    """

    def __init__(
        self,
        process: WorkerProcess[FromWorker],
        description: Description,
        call_s: float,
        on_loss: "Callable[[EnvironmentProcess, WorkerLoss], None]",
    ) -> None:
        self._process = process
        self._call_s = call_s
        self._on_loss = on_loss
        self._clock = asyncio.get_running_loop().time
        self._num_calls = 0
        self.description = description
        self.calls: dict[int, WorkerCall] = {}
        """Unanswered calls by their numbers."""
        self.loss: WorkerLoss | None = None
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._watch())]

    @classmethod
    async def start(
        cls,
        environment: Environment,
        on_loss: "Callable[[EnvironmentProcess, WorkerLoss], None]",
        *,
        variables: Mapping[str, str],
        output_bytes: int,
    ) -> "EnvironmentProcess":
        """Start a worker; raises `ConfigError`, with its message, if it cannot load the environment."""
        program = WorkerProgram(
            name="a worker of environments",
            command=[*interpreter(environment.python), str(PROGRAM)],
            limits=GuardLimits("environment", environment.memory_bytes, environment.processes, environment.file_bytes),
            code=named(environment),
            start_s=START_S,
            max_answer_bytes=MAX_ANSWER_BYTES,
            variables=variables,
            has_folder=True,
        )
        load = {name: getattr(environment, name) for name in ("function", "tools", "options", "call_s", "seats")}
        load["saves_containers"] = environment.container.snapshot == "turn"
        process, answer = await WorkerProcess.start(program, encode({"load": load}), decode, output_bytes)
        if answer.loaded is None:
            await process.kill()
            raise ConfigError(answer.refused or f"{program.code} wrote to the pipe of its worker")
        return cls(process, answer.loaded, environment.call_s, on_loss)

    def send(self, episode: str, method: str, fields: Mapping[str, Any], *, is_limited: bool) -> WorkerCall:
        """Send a call; its future gives the encoded answer."""
        now = self._clock()
        answer = asyncio.get_running_loop().create_future()
        self._num_calls += 1
        call = self.calls[self._num_calls] = WorkerCall(episode, method, answer, now, now if is_limited else None)
        self._process.send(encode({"n": self._num_calls, "call": method, **fields}))
        return call

    def cancel(self, call: WorkerCall) -> None:
        """Cancel a call in the worker, which has ``call_s`` to end it."""
        number = next((number for number, known in self.calls.items() if known is call), None)
        if number is not None:
            call.limited_from = self._clock() if call.limited_from is None else call.limited_from
            self._process.send(encode({"n": number, "cancel": True}))

    def fail(self, error: Callable[[WorkerCall], EnvironmentFailed]) -> None:
        """Fail all unanswered calls."""
        for call in self.calls.values():
            if not call.answer.done():
                call.answer.set_exception(error(call))
                call.answer.exception()  # one that nobody waits for any more is no warning
        self.calls.clear()

    async def kill(self) -> None:
        """Kill the worker with all that it has started; calls that it has not answered are lost. Idempotent."""
        self.fail(lambda _: lost_with("the environments of this rollout were closed"))
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._process.kill()

    async def _listen(self) -> None:
        try:
            while True:
                self._receive(await self._process.receive())
        except EOFError:
            reason = await self._process.cause()
            self._lose(WorkerLoss(reason, running(self.calls.values()), has_hung=False))

    def _receive(self, message: FromWorker) -> None:
        call = self.calls.get(message.n)
        if call is None:
            raise NotAFrame  # a number that was never sent, or is answered
        if message.begun:
            call.begun_at = self._process.heard_at
            return
        del self.calls[message.n]
        if call.answer.done():
            return
        if message.error:
            failed = EnvironmentFailed(message.error, retryable=message.retryable, is_lost=message.lost)
            call.answer.set_exception(failed)
        else:
            call.answer.set_result(message.answer)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(min(self._call_s / LOOK_SHARE, 1.0))
            if late := overdue(self.calls.values(), self._process.heard_at, self._call_s, self._clock()):
                guilty = culprits(self.calls.values(), late)
                methods = ", ".join(sorted({call.method for call in guilty})) or "the worker"
                limit = f"environment.call_s = {self._call_s:g}"
                self._lose(
                    WorkerLoss(f"{methods} took longer than {limit}, and its worker was killed", guilty, has_hung=True)
                )
                return

    def _lose(self, loss: WorkerLoss) -> None:
        if self.loss is None:
            self.loss = loss
            self._on_loss(self, loss)


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


# ── worker slot ───────────────────────────────────────────────────────────────────────────────
# One worker of a pool: replaced when it is lost, with the episode found that made it fail.
#
#     episodes a b c ── b hangs ──▶  b fails: retryable, and not lost
#                                    a, c are lost with the worker, and may be continued on another one at once


class EnvironmentSlot(WorkerSlot[EnvironmentProcess, str]):
    """Holds one worker, whose episodes are blamed by their names."""

    def __init__(self, environment: Environment, variables: Mapping[str, str], suspects: Suspects) -> None:
        super().__init__(self._start_alike, suspects.blame)
        self._environment = environment
        self._variables = variables
        self.suspects = suspects
        self.description: Description | None = None
        self.episodes = 0
        """Open episodes."""

    async def _start_alike(self, output_bytes: int) -> EnvironmentProcess:
        """Start a worker like the first one; if it is killed while it loads, again, until the code must be to blame."""
        for lost in count(1):
            try:
                worker = await EnvironmentProcess.start(
                    self._environment, self._lost, variables=self._variables, output_bytes=output_bytes
                )
                break
            except LostInLoading:
                if lost == LOST_IN_A_ROW:
                    raise
        if self.description not in (None, worker.description):
            await worker.kill()
            raise ConfigError("a worker that was replaced describes the environment differently than the first ones")
        self.description = worker.description
        return worker

    def _lost(self, worker: EnvironmentProcess, loss: WorkerLoss) -> None:
        """Fail all calls of the worker, and kill it; the next call starts another one."""
        blamed, retryable = self.lose({call.episode for call in loss.culprits}, is_certain=loss.has_hung)
        worker.fail(
            lambda call: (
                EnvironmentFailed(loss.reason, retryable=retryable)
                if call.episode in blamed
                else lost_with(loss.reason)
            )
        )
        self.discard(worker)


def lost_with(reason: str) -> EnvironmentFailed:
    return EnvironmentFailed(f"the episode was lost with its worker: {reason}", is_lost=True)
