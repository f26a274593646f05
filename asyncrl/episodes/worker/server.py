"""
The loop of a worker: it loads the code, and runs the calls of many episodes.

    pool ── {"load": {...}} ─▶ worker                {"loaded": {...}} | {"refused": "..."}
    pool ── {"n": 5, "episode": 2, "call": "step", ...} ─▶ worker
                                                     {"n": 5, "begun": true}       the method is running
                                                     {"n": 5, "answer": {...}} | {"n": 5, "error": "..."}
    pool ── {"n": 5, "cancel": true} ─▶ worker       an answer, or an error, still comes

Messages are JSON in `frames`; bytes in them are base64. Answers come in any order.

Async methods run concurrently; a plain function holds up all others until it returns. The pool is told of each call
before it runs, so that it knows which one ended or blocked the process.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import inspect
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from asyncrl.environment import Client, Said, Task, ToolCall
from asyncrl.episodes.worker.load import Code, load
from asyncrl.episodes.worker.values import BadValue, reset_of, score_of, shown, step_of
from asyncrl.errors import ConfigError, ContainerFailed
from asyncrl.foreign_text import whole
from asyncrl.plug_in import describe
from asyncrl.workers.containers import EpisodeContainer
from asyncrl.workers.frames import Frames, framed, read_frame, take_pipes

# ── one episode ────────────────────────────────────────────────────────────────────────────────
# One episode in a worker: its environment, and one call at a time.
#
#     reset ─▶ begin ─▶ environment.reset(task)            restore likewise
#     step, score, snapshot, solve, close                  methods of that environment

CLOSE_S = 5.0
"""Seconds for ``close`` of an environment."""


class WorkerEpisode:
    def __init__(self, code: Code) -> None:
        self._code = code
        self._environment: Any = None
        self._turn = asyncio.Lock()

    async def call(self, request: dict[str, Any], begun: Callable[[], None]) -> dict[str, Any]:
        """Run one method, after the one before it; ``begun`` is called when its turn has come."""
        async with self._turn:
            begun()
            method = METHODS[request["call"]]
            return await method(self, request)

    async def _reset(self, request: dict[str, Any]) -> dict[str, Any]:
        task = await self._begin(request)
        return reset_of(await _run(self._environment.reset, task))

    async def _step(self, request: dict[str, Any]) -> dict[str, Any]:
        said = request["said"]
        calls = [ToolCall(**call) for call in said.pop("tool_calls")]
        return step_of(await _run(self._environment.step, Said(tool_calls=calls, **said)), "step")

    async def _score(self, request: dict[str, Any]) -> dict[str, Any]:
        score = getattr(self._environment, "score", None)
        return score_of(await _run(score) if score else None, "score")

    async def _solve(self, request: dict[str, Any]) -> dict[str, Any]:
        task = await self._begin(request)
        client = Client(request["base_url"], request["key"])
        return score_of(await _run(self._environment.solve, task, client), "the program")

    async def _snapshot(self, request: dict[str, Any]) -> dict[str, Any]:
        state = await _run(self._environment.snapshot)
        if not isinstance(state, bytes):
            raise BadValue(f"snapshot returned {shown(state)}, expected bytes")
        return {"state": base64.b64encode(state).decode()}

    async def _restore(self, request: dict[str, Any]) -> dict[str, Any]:
        task = await self._begin(request)
        await _run(self._environment.restore, task, base64.b64decode(request["state"]))
        return {}

    async def _close(self, request: dict[str, Any]) -> dict[str, Any]:
        environment, self._environment = self._environment, None
        if close := getattr(environment, "close", None):
            try:
                await asyncio.wait_for(_run(close), CLOSE_S)
            except TimeoutError:
                sys.stderr.write(f"environment: close took longer than {CLOSE_S:g} s and was given up\n")
        return {}

    async def _begin(self, request: dict[str, Any]) -> Task:
        """Make the environment, after closing that of an earlier ``reset``."""
        await self._close(request)
        told = request.get("container")
        images = [base64.b64decode(file) for file in request["task"].pop("images", ())]
        task = Task(**request["task"], container=EpisodeContainer(**told) if told else None, images=images)
        self._environment = await self._code.begin(task)
        return task


async def _run(method: Callable[..., Any], *arguments: Any) -> Any:
    value = method(*arguments)
    return await value if inspect.isawaitable(value) else value


METHODS = {
    "reset": WorkerEpisode._reset,
    "step": WorkerEpisode._step,
    "score": WorkerEpisode._score,
    "solve": WorkerEpisode._solve,
    "snapshot": WorkerEpisode._snapshot,
    "restore": WorkerEpisode._restore,
    "close": WorkerEpisode._close,
}


# ── the server ─────────────────────────────────────────────────────────────────────────────────

OURS = (str(Path(__file__).parent), str(Path(asyncio.__file__).parent))
"""Folders whose traceback frames are left out of messages: they are not the environment's."""
MAX_ERROR_CHARS = 2000
THREADS = 1024
"""
Threads for plain agent programs, and for ``asyncio.to_thread`` of async ones. Python's default is few more than cores:
programs that wait for the policy would hold up the others, and for ever if the policy waits for one of those.
"""


def main() -> None:
    inbox, outbox = take_pipes()
    with os.fdopen(inbox, "rb", closefd=False) as stream:  # the next message comes after the answer
        message = read_frame(stream)
    if message is None:
        return
    try:
        code = load(json.loads(message)["load"])
    except ConfigError as error:
        os.write(outbox, encode({"refused": str(error)}))
        return
    asyncio.run(_serve(code, inbox, outbox))


async def _serve(code: Code, inbox: int, outbox: int) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, thread_name_prefix="environment"))
    try:
        tools = await code.start()
    except ConfigError as error:
        os.write(outbox, encode({"refused": str(error)}))
        return
    sender = await open_outbox(outbox)
    worker = EnvironmentWorker(code, sender)
    sender.send(encode({"loaded": {"kind": code.kind, "resume": code.resume, "tools": tools}}))
    await open_inbox(inbox, worker.receive)
    await asyncio.get_running_loop().create_future()  # until stdin ends the process


class EnvironmentWorker:
    """Runs each request in a task, and answers it."""

    def __init__(self, code: Code, outbox: FrameOutbox) -> None:
        self._code = code
        self._outbox = outbox
        self._episodes: dict[int, WorkerEpisode] = {}
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
            frame = encode({"n": number, "answer": answer})
        except BaseException as error:  # noqa: BLE001  user code may raise anything, SystemExit included
            frame = encode({"n": number, **_failed(request["call"], error)})
        self._outbox.send(frame)

    def _episode(self, request: dict[str, Any]) -> WorkerEpisode:
        number = request["episode"]
        if request["call"] == "close":
            return self._episodes.pop(number, None) or WorkerEpisode(self._code)
        if number not in self._episodes:
            self._episodes[number] = WorkerEpisode(self._code)
        return self._episodes[number]


def _failed(method: str, error: BaseException) -> dict[str, Any]:
    """Describe an exception. It is retryable unless it says otherwise: a service may be back later."""
    if isinstance(error, asyncio.CancelledError):
        return {"error": f"{method} was cancelled", "retryable": True}
    if isinstance(error, BadValue):
        return {"error": str(error), "retryable": False}
    if isinstance(error, ContainerFailed):
        return {"error": f"the container was lost: {error}"[:MAX_ERROR_CHARS], "lost": True}
    reason = f"{method} raised {describe(error, *OURS)}"
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        reason += "; environment.file_bytes limits the size of a file"
    return {"error": reason[:MAX_ERROR_CHARS], "retryable": getattr(error, "retryable", True) is not False}


# ── pipe ───────────────────────────────────────────────────────────────────────────────────────


def encode(message: dict[str, Any]) -> bytes:
    """Encode a message as a frame; raises `ValueError` or `TypeError` if a value has no form in JSON, as NaN."""
    text = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return framed(whole(text).encode())


class FrameInbox(asyncio.Protocol):
    """Hands over each message of stdin; ends the process with stdin."""

    def __init__(self, receive: Callable[[dict[str, Any]], None]) -> None:
        self._receive = receive
        self._frames = Frames()

    def data_received(self, data: bytes) -> None:
        self._frames.feed(data)
        while (message := self._frames.take()) is not None:
            self._receive(json.loads(message))

    def connection_lost(self, exc: Exception | None) -> None:
        os._exit(0)  # the keeper ends what was started


class FrameOutbox:
    """Sends frames; answers of one turn of the loop are written at once."""

    def __init__(self, transport: asyncio.WriteTransport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._waiting: list[bytes] = []
        self._pid = os.getpid()

    def send(self, frame: bytes) -> None:
        if os.getpid() != self._pid:  # the environment forked, and this is the copy
            os._exit(1)
        if not self._waiting:
            self._loop.call_soon(self.flush)
        self._waiting.append(frame)

    def begin(self, number: int) -> None:
        """Say now that a call is running, after all that is waiting: the call may block or end the process."""
        self.send(framed(b'{"n":%d,"begun":true}' % number))
        self.flush()

    def flush(self) -> None:
        if self._waiting:
            self._transport.write(b"".join(self._waiting))
            self._waiting.clear()


async def open_outbox(fd: int) -> FrameOutbox:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(fd, "wb", buffering=0))
    return FrameOutbox(transport, loop)


async def open_inbox(fd: int, receive: Callable[[dict[str, Any]], None]) -> None:
    """Call ``receive`` with each message from now on."""
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: FrameInbox(receive), os.fdopen(fd, "rb", buffering=0))
