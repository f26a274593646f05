"""
Agent programs: ``environment.command``, run once for each episode below a keeper of its own.

    Programs.open(name) ─▶ ProgramEpisode.solve(task, base_url, key) ─▶ exit code 0: the episode is over
                                                                     ─▶ another:     `EnvironmentFailed`

    OPENAI_BASE_URL, OPENAI_API_KEY     the policy, as an OpenAI server
    ASYNCRL_TASK                        path of a JSON file: messages, answer, data_source, extra, seed, name
    ASYNCRL_REWARD_URL                  takes a PUT of {"reward": 1.0, "metrics": {"steps": 3}}; optional
    ASYNCRL_RUN                         name of the run, a label for what the program starts elsewhere
    TMPDIR                              a folder of its own, which is removed with it

A program that exceeds the limits of ``environment``, or whose `solve` is cancelled, ends with all that it has started.
"""

import asyncio
import os
import secrets
import shutil
import sys
import time
from asyncio import StreamReader
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import msgspec

from asyncrl import plug_in
from asyncrl.config.sections.environment import Environment
from asyncrl.environment.interface import Answer, Description, PolicyTurn, Score, TaskInput
from asyncrl.errors import ConfigError, EnvironmentFailed
from asyncrl.workers import folders
from asyncrl.workers.keeper import AT_ONCE_BYTES, GuardLimits, OutputAllowance
from asyncrl.workers.kept import KeptProcess

SETTING = "environment.command"
SHELL = "/bin/sh"
LAUNCH = """
head -c "$1" > "$TMPDIR/task.json"
shift
ASYNCRL_TASK=$TMPDIR/task.json
export ASYNCRL_TASK
"$@" < /dev/null 2>&1
printf '\\n%s %d\\n' "$0" $?
"""
"""
Takes the task from the pipe that the keeper watches, so that the program's stdin is empty, and writes the exit code
after a mark that the program does not know.
"""
TAIL_BYTES = 16 << 10
"""Output that is kept for the last line and the exit code."""
CHUNK_BYTES = 1 << 16
START_S = 30.0
"""Seconds for the shell to take the task."""
MAX_LINE = 500
"""Characters of the last line in a message."""


class Programs:
    """
    All programs of a rollout: `asyncrl.environment.interface.Environments`.

    Raises:
        ConfigError: There is no such program, or the operator of this node allowed none from its folder.
    """

    description = Description(kind="command", resume="rerun")

    def __init__(self, environment: Environment, run_id: str) -> None:
        self._environment = environment
        self._run_id = run_id
        self._open: set[ProgramEpisode] = set()
        self._is_closed = False
        program = environment.command[0]
        if shutil.which(program) is None:
            raise ConfigError(f"{SETTING}: there is no program {program!r}")
        plug_in.require_program(program, setting=SETTING)

    def open(self, name: str, /) -> "ProgramEpisode":
        """An episode; its program starts with `ProgramEpisode.solve`."""
        if self._is_closed:
            raise EnvironmentFailed("the environments of this rollout were closed")
        episode = ProgramEpisode(name, self._environment, self._run_id, self._open.discard)
        self._open.add(episode)
        return episode

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(folders.sweep)  # what killed nodes had just begun to start
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Kill all programs and what they have started. Idempotent."""
        self._is_closed = True
        await asyncio.gather(*(episode.close() for episode in list(self._open)))


class ProgramEpisode:
    """One run of the program: `asyncrl.environment.interface.EnvironmentEpisode`, of which it has `solve` alone."""

    def __init__(
        self, name: str, environment: Environment, run_id: str, on_closed: "Callable[[ProgramEpisode], None]"
    ) -> None:
        self.name = name
        self._environment = environment
        self._run_id = run_id
        self._on_closed = on_closed
        self._running: asyncio.Task[None] | None = None

    async def solve(self, task: TaskInput, base_url: str, key: str, /) -> Score:
        """
        Run the program to its end. Its reward, if it has one, was put to the gateway.

        Raises:
            EnvironmentFailed: It ended with another exit code than 0, exceeded a limit, or could not be started.
        """
        self._running = asyncio.create_task(self._run(task, base_url, key))
        try:
            await asyncio.wait([self._running])
        except asyncio.CancelledError:
            await self._kill()
            raise
        if self._running.cancelled():
            raise EnvironmentFailed("the episode was closed")
        self._running.result()
        return Score()

    async def close(self) -> None:
        await self._kill()
        self._on_closed(self)

    async def _kill(self) -> None:
        """Kill the program with all that it has started, and wait until `_run` has ended."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def _run(self, task: TaskInput, base_url: str, key: str) -> None:
        raw, mark = msgspec.json.encode(task), secrets.token_hex(16)
        settings = self._environment
        limits = GuardLimits("environment", settings.memory_bytes, settings.processes, settings.file_bytes)
        command = [SHELL, "-c", LAUNCH, mark, str(len(raw)), *settings.command]
        variables = _variables(base_url, key, self._run_id)
        try:
            process = await KeptProcess.start(command, limits, AT_ONCE_BYTES, variables, has_folder=True)
        except OSError as error:
            raise EnvironmentFailed(f"{SETTING} cannot be started: {error.strerror}") from error
        try:
            await _give(process, raw)
            output, found, code = (await _relayed(process.stdout)).rpartition(f"\n{mark} ")
            if not found:
                raise EnvironmentFailed(await process.cause())
        finally:
            await process.kill()
        if code.strip() != "0":
            last = output.strip().rpartition("\n")[2][-MAX_LINE:] or "it printed nothing"
            raise EnvironmentFailed(f"{SETTING} ended with exit code {code.strip()}: {last}")

    async def reset(self, task: TaskInput, /) -> Answer:
        raise _no_steps("reset")

    async def step(self, said: PolicyTurn, /) -> Answer:
        raise _no_steps("step")

    async def score(self) -> Score:
        return Score()

    async def snapshot(self) -> bytes:
        raise _no_steps("snapshot")

    async def restore(self, task: TaskInput, state: bytes, /) -> None:
        raise _no_steps("restore")


def _variables(base_url: str, key: str, run_id: str) -> Mapping[str, str]:
    """Environment of a program. The gateway is on this machine: no proxy stands before it."""
    host = base_url.partition("://")[2].rpartition(":")[0].strip("[]")
    proxies = {name: ",".join(filter(None, (os.environ.get(name), host))) for name in ("no_proxy", "NO_PROXY")}
    return {
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": key,
        "ASYNCRL_REWARD_URL": f"{base_url.removesuffix('/v1')}/reward",
        "ASYNCRL_RUN": run_id,
        **proxies,
    }


async def _give(process: KeptProcess, raw: bytes) -> None:
    process.stdin.write(raw)
    try:
        async with asyncio.timeout(START_S):
            await process.stdin.drain()
    except (ConnectionError, TimeoutError) as error:
        raise EnvironmentFailed(f"{SETTING} did not take its task: {await process.cause()}") from error


async def _relayed(stream: StreamReader) -> str:
    """Print the program's output to stderr, within its allowance; return the end of it."""
    allowance = OutputAllowance("agent program", AT_ONCE_BYTES, time.monotonic())
    tail = b""
    while chunk := await stream.read(CHUNK_BYTES):
        tail = (tail + chunk)[-TAIL_BYTES:]
        sys.stderr.buffer.write(chunk[: allowance.admit(len(chunk), time.monotonic())])
        sys.stderr.write(allowance.note(time.monotonic()))
    sys.stderr.write(allowance.note(time.monotonic(), last=True))
    return tail.decode("utf-8", "replace")


def _no_steps(method: str) -> EnvironmentFailed:
    return EnvironmentFailed(f"an agent program has no {method}: it runs by itself", retryable=False)
