"""
The loop of a worker: it loads the code, and runs the calls of many episodes.

Async methods run concurrently; a plain function holds up all others until it returns. The pool is told of each call
before it runs, so that it knows which one ended or blocked the process.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from asyncrl.environment.worker import pipe
from asyncrl.environment.worker.episode import Episode
from asyncrl.environment.worker.load import Code, load
from asyncrl.environment.worker.pipe import Frames, Outbox
from asyncrl.environment.worker.values import BadValue
from asyncrl.errors import ConfigError
from asyncrl.plug_in import describe
from asyncrl.processes.prctl import PR_SET_PDEATHSIG, prctl

OURS = (str(Path(__file__).parent), str(Path(asyncio.__file__).parent))
"""Folders whose traceback frames are left out of messages: they are not the environment's."""
MAX_ERROR_CHARS = 2000
THREADS = 1024
"""
Threads for plain agent programs, and for ``asyncio.to_thread`` of async ones. Python's default is few more than cores:
programs that wait for the policy would hold up the others, and for ever if the policy waits for one of those.
"""


def main() -> None:
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # without Linux, only the end of stdin ends it
    inbox, outbox = pipe.take_pipes()
    settings = _first_frame(inbox)["load"]
    try:
        code = load(settings)
    except ConfigError as error:
        os.write(outbox, pipe.encode({"refused": str(error)}))
        return
    asyncio.run(_serve(code, inbox, outbox))


async def _serve(code: Code, inbox: int, outbox: int) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, thread_name_prefix="environment"))
    try:
        tools = await code.start()
    except ConfigError as error:
        os.write(outbox, pipe.encode({"refused": str(error)}))
        return
    sender = await pipe.open_outbox(outbox)
    worker = Worker(code, sender)
    sender.send(pipe.encode({"loaded": {"kind": code.kind, "resume": code.resume, "tools": tools}}))
    await pipe.open_inbox(inbox, worker.receive)
    await asyncio.get_running_loop().create_future()  # until stdin ends the process


class Worker:
    """Runs each request in a task, and answers it."""

    def __init__(self, code: Code, outbox: Outbox) -> None:
        self._code = code
        self._outbox = outbox
        self._episodes: dict[int, Episode] = {}
        self._running: dict[int, asyncio.Task[None]] = {}

    def receive(self, frame: dict[str, Any]) -> None:
        number = frame["n"]
        if "cancel" in frame:
            if number in self._running:
                self._running[number].cancel()
            return
        task = self._running[number] = asyncio.ensure_future(self._serve(number, frame))
        task.add_done_callback(lambda _: self._running.pop(number))

    async def _serve(self, number: int, request: dict[str, Any]) -> None:
        try:
            episode = self._episode(request)
            answer = await episode.call(request, lambda: self._outbox.begin(number))
            frame = pipe.encode({"n": number, "answer": answer})
        except BaseException as error:  # noqa: BLE001  user code may raise anything, SystemExit included
            frame = pipe.encode({"n": number, **_failed(request["call"], error)})
        self._outbox.send(frame)

    def _episode(self, request: dict[str, Any]) -> Episode:
        number = request["episode"]
        if request["call"] == "close":
            return self._episodes.pop(number, None) or Episode(self._code)
        if number not in self._episodes:
            self._episodes[number] = Episode(self._code)
        return self._episodes[number]


def _failed(method: str, error: BaseException) -> dict[str, Any]:
    """Describe an exception. It is retryable unless it says otherwise: a service may be back later."""
    if isinstance(error, asyncio.CancelledError):
        return {"error": f"{method} was cancelled", "retryable": True}
    if isinstance(error, BadValue):
        return {"error": str(error), "retryable": False}
    reason = f"{method} raised {describe(error, *OURS)}"
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        reason += "; environment.file_bytes limits the size of a file"
    return {"error": reason[:MAX_ERROR_CHARS], "retryable": getattr(error, "retryable", True) is not False}


def _first_frame(inbox: int) -> dict[str, Any]:
    frames = Frames()
    while chunk := os.read(inbox, 1 << 16):
        if found := frames.feed(chunk):
            return found[0]
    raise SystemExit(0)
