"""
The environments of a rollout: a pool of workers that run them, or a program for each episode. All can be killed.

    open("run/train/17/3") ─▶ PooledEpisode ─┐            ┌─ worker: reset, step, step, ... of many episodes
    open("run/train/17/4") ─▶ PooledEpisode ─┼ a slot ────┤
    open("run/train/18/0") ─▶ PooledEpisode ─┘            └─ worker

An environment is user code, called with text of a policy that writes whatever is rewarded: it may raise, hang, use up
the memory, or end its process. None of that harms this process, and none of it becomes a reward.
"""

import asyncio
import base64
import os
import secrets
import shutil
import sys
import time
from asyncio import StreamReader
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from itertools import count
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
from msgspec import Struct

from asyncrl import plug_in
from asyncrl.config.sections.environment import Environment
from asyncrl.engine import PolicyTurn
from asyncrl.episodes.containers import ContainerLease, ContainerPool, ContainerState
from asyncrl.episodes.environment import Answer, Description, Environments, Score, TaskInput
from asyncrl.episodes.workers import EnvironmentProcess, EnvironmentSlot, Suspects, lost_with, named, require_allowed
from asyncrl.errors import ConfigError, EnvironmentFailed
from asyncrl.log import get_logger
from asyncrl.messages.session import ContainerCounts
from asyncrl.workers import folders
from asyncrl.workers.keeper import AT_ONCE_BYTES, GuardLimits, OutputAllowance
from asyncrl.workers.kept import KeptProcess
from asyncrl.workers.worker import start_all

# ── episode ────────────────────────────────────────────────────────────────────────────────────
# The environment of one episode, in a worker of the pool: `asyncrl.episodes.environment.EnvironmentEpisode`.

CLOSE_S = 6.0
"""Seconds that `close` waits; a second more than a worker gives an environment."""

log = get_logger()
T = TypeVar("T", bound=Struct)


class EpisodePhase(Struct):
    state: str


class Nothing(Struct): ...


class PooledEpisode:
    """Bound to a worker by its first call; if that is lost, the episode is lost. Its container ends with it."""

    def __init__(
        self,
        name: str,
        number: int,
        slot: EnvironmentSlot,
        on_closed: "Callable[[PooledEpisode], None]",
        container: "LeasedContainer",
    ) -> None:
        self.name = name
        self.slot = slot
        self._number = number
        self._container = container
        self._on_closed = on_closed
        self._worker: EnvironmentProcess | None = None
        self._is_closed = False

    async def reset(self, task: TaskInput, /) -> Answer:
        return await self._call("reset", Answer, task=task, container=await self._container.fresh(task))

    async def step(self, said: PolicyTurn, /) -> Answer:
        return await self._call("step", Answer, said=said)

    async def score(self) -> Score:
        return await self._call("score", Score)

    async def snapshot(self) -> bytes:
        state = base64.b64decode((await self._call("snapshot", EpisodePhase)).state)
        return await self._container.saved(state)

    async def restore(self, task: TaskInput, state: bytes, /) -> None:
        container, state = await self._container.restored(task, state)
        encoded = base64.b64encode(state).decode()
        await self._call("restore", Nothing, task=task, state=encoded, container=container)

    async def solve(self, task: TaskInput, base_url: str, key: str, /) -> Score:
        container = await self._container.fresh(task)
        call = self._call("solve", Score, is_limited=False, task=task, base_url=base_url, key=key, container=container)
        return await call

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._worker is not None and self._worker.loss is None:
                await self._close(self._worker)
        finally:
            self._container.release()
            self._on_closed(self)

    async def _close(self, worker: EnvironmentProcess) -> None:
        call = worker.send(self.name, "close", {"episode": self._number}, is_limited=True)
        await asyncio.wait([call.answer], timeout=CLOSE_S)
        if not call.answer.done():
            log.warning("environment.close_hangs", episode=self.name, after_s=CLOSE_S)
        elif error := call.answer.exception():
            log.warning("environment.close_failed", episode=self.name, reason=str(error))
        if worker.loss is None:
            self.slot.suspects.acquit(self.name)

    async def _call(self, method: str, kind: type[T], *, is_limited: bool = True, **fields: Any) -> T:
        worker = await self._bound()
        call = worker.send(self.name, method, {"episode": self._number, **fields}, is_limited=is_limited)
        try:
            answer = await call.answer
        except asyncio.CancelledError:
            worker.cancel(call)
            raise
        finally:
            if worker.loss is None:
                self.slot.answered()
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(answer, type=kind)
        raise EnvironmentFailed(f"the worker's answer to {method} is none: {bytes(answer)[:80]!r}", retryable=False)

    async def _bound(self) -> EnvironmentProcess:
        if self._is_closed:
            raise EnvironmentFailed("the episode was closed")
        if self._worker is None:
            try:
                self._worker = await self.slot.worker()
            except ConfigError as error:
                raise EnvironmentFailed(f"a lost worker could not be replaced: {error}") from error
        if self._worker.loss is not None:
            raise lost_with(self._worker.loss.reason)
        return self._worker


class LeasedContainer:
    """
    The container of one attempt at an episode, as a worker is told of it; without a pool there is none.

    Args:
        is_saved: A snapshot is made after each turn.
    """

    def __init__(self, pool: ContainerPool | None, *, is_saved: bool) -> None:
        self._pool = pool
        self._is_saved = is_saved
        self._lease: ContainerLease | None = None

    async def fresh(self, task: TaskInput) -> dict[str, str] | None:
        """Take a new one, in place of the one before. Raises as `ContainerPool.lease`."""
        return await self._take(task, "")

    async def restored(self, task: TaskInput, state: bytes) -> tuple[dict[str, str] | None, bytes]:
        """Take one with the files of a snapshot, and return it with the environment's own state. Raises likewise."""
        if not self._is_saved:
            return await self._take(task, ""), state
        saved = msgspec.msgpack.decode(state, type=ContainerState)
        return await self._take(task, saved.image), saved.state

    async def saved(self, state: bytes) -> bytes:
        """Save the container, and return its image with the environment's own state."""
        if not self._is_saved or self._pool is None or self._lease is None:
            return state
        return msgspec.msgpack.encode(ContainerState(await self._pool.snapshot(self._lease), state))

    def release(self) -> None:
        """Give the container back, which removes it. Idempotent."""
        if self._pool is not None and self._lease is not None:
            self._pool.release(self._lease)
            self._lease = None

    async def _take(self, task: TaskInput, image: str) -> dict[str, str] | None:
        self.release()
        if self._pool is None:
            return None
        self._lease = await self._pool.lease(task, image)
        return {"runtime": self._pool.runtime, "name": self._lease.name, "label": self._pool.label}


# ── pool ───────────────────────────────────────────────────────────────────────────────────────


class EnvironmentPool:
    """
    ``environment.workers`` processes that run the environments of a rollout.

    Example:
        async with EnvironmentPool(config.environment, "my-run", "rollout-0") as pool:
            episode = pool.open("my-run/train/0/0")
            await episode.reset(TaskInput(messages=[...]))
    """

    description: Description
    """Set by `start`."""

    def __init__(self, environment: Environment, run_id: str, node: str) -> None:
        self._environment = environment
        variables = {"ASYNCRL_RUN": run_id, "ASYNCRL_NODE": node}
        suspects = Suspects()
        self._slots = [EnvironmentSlot(environment, variables, suspects) for _ in range(environment.workers)]
        self._containers = container_pool(environment, run_id, node)
        self._open: set[PooledEpisode] = set()
        self._numbers = count(1)
        self._is_closed = False

    @property
    def replaced(self) -> int:
        """Number of workers so far that hung or died."""
        return sum(slot.replaced for slot in self._slots)

    @property
    def containers(self) -> ContainerCounts | None:
        return self._containers.counts if self._containers else None

    async def start(self) -> None:
        """
        Start all workers and load the environment in each; remove what killed nodes have left on this machine.

        Raises:
            ConfigError: It cannot be loaded, or workers describe it differently; or there is no container runtime. None
                is left running.
        """
        require_allowed(self._environment)
        await asyncio.to_thread(folders.sweep)
        try:
            await start_all(self._slots)
            self.description = self._agreed()
            if self._containers:
                await self._containers.start()
        except BaseException:
            await self.aclose()
            raise

    def open(self, name: str, /) -> PooledEpisode:
        """Open an episode on the worker that has fewest; raises `EnvironmentFailed` after `aclose`."""
        if self._is_closed:
            raise EnvironmentFailed("the environments of this rollout were closed")
        slot = min(self._slots, key=lambda slot: slot.episodes)
        slot.episodes += 1
        container = LeasedContainer(self._containers, is_saved=self._environment.container.snapshot == "turn")
        episode = PooledEpisode(name, next(self._numbers), slot, self._closed, container)
        self._open.add(episode)
        return episode

    async def aclose(self) -> None:
        """Close all episodes, then kill every worker and what it has started. Idempotent."""
        self._is_closed = True
        await asyncio.gather(*(episode.close() for episode in list(self._open)), return_exceptions=True)
        await asyncio.gather(*(slot.clear() for slot in self._slots))
        if self._containers:
            await self._containers.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _closed(self, episode: PooledEpisode) -> None:
        self._open.discard(episode)
        episode.slot.episodes -= 1

    def _agreed(self) -> Description:
        found = [slot.description for slot in self._slots]
        first = found[0]
        if first is None or any(other != first for other in found):
            raise ConfigError(
                f"{named(self._environment)} is described differently by two workers: kind, resume and tools must not "
                f"depend on chance or on the process"
            )
        require_resumable(self._environment, first)
        return first


def require_resumable(environment: Environment, description: Description) -> None:
    """Raise `ConfigError` if containers are to be saved for an environment that is not continued from snapshots."""
    if environment.container.snapshot == "turn" and description.resume != "snapshot":
        raise ConfigError(
            f"environment.container.snapshot = 'turn' saves the files of a container, but {named(environment)} has "
            f"resume = {description.resume!r} for its own state; give it resume = 'snapshot', or use 'none'"
        )


def container_pool(environment: Environment, run_id: str, node: str) -> ContainerPool | None:
    return ContainerPool(environment.container, run_id, node) if environment.container.is_set else None


# ── program ────────────────────────────────────────────────────────────────────────────────────
# Agent programs: ``environment.command``, run once for each episode below a keeper of its own.
#
#     Programs.open(name) ─▶ ProgramEpisode.solve(task, base_url, key) ─▶ exit code 0: the episode is over
#                                                                      ─▶ another:     `EnvironmentFailed`
#
#     OPENAI_BASE_URL, OPENAI_API_KEY     the policy, as an OpenAI server
#     ASYNCRL_TASK                        path of a JSON file: messages, answer, data_source, extra, seed, name
#     ASYNCRL_REWARD_URL                  takes a PUT of {"reward": 1.0, "metrics": {"steps": 3}}; optional
#     ASYNCRL_RUN                         name of the run, a label for what the program starts elsewhere
#     ASYNCRL_CONTAINER                   name of the container of the episode; _RUNTIME, _LABEL: see `Container`
#     TMPDIR                              a folder of its own, which is removed with it
#
# A program that exceeds the limits of ``environment``, or whose `solve` is cancelled, ends with all that it has
# started.

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
    All programs of a rollout: `asyncrl.episodes.environment.Environments`.

    Raises:
        ConfigError: There is no such program, or the operator of this node allowed none from its folder.
    """

    description = Description(kind="command", resume="rerun")

    def __init__(self, environment: Environment, run_id: str, node: str = "") -> None:
        self._environment = environment
        self._run_id = run_id
        self._containers = container_pool(environment, run_id, node)
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
        container = LeasedContainer(self._containers, is_saved=False)
        episode = ProgramEpisode(name, self._environment, self._run_id, self._open.discard, container)
        self._open.add(episode)
        return episode

    @property
    def containers(self) -> ContainerCounts | None:
        return self._containers.counts if self._containers else None

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(folders.sweep)  # what killed nodes had just begun to start
        if self._containers:
            await self._containers.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Kill all programs and what they have started. Idempotent."""
        self._is_closed = True
        await asyncio.gather(*(episode.close() for episode in list(self._open)))
        if self._containers:
            await self._containers.aclose()


class ProgramEpisode:
    """One run of the program: `asyncrl.episodes.environment.EnvironmentEpisode`, of which it has `solve` alone."""

    def __init__(
        self,
        name: str,
        environment: Environment,
        run_id: str,
        on_closed: "Callable[[ProgramEpisode], None]",
        container: LeasedContainer,
    ) -> None:
        self.name = name
        self._container = container
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
        self._container.release()

    async def _run(self, task: TaskInput, base_url: str, key: str) -> None:
        raw, mark = msgspec.json.encode(task), secrets.token_hex(16)
        settings = self._environment
        limits = GuardLimits("environment", settings.memory_bytes, settings.processes, settings.file_bytes)
        command = [SHELL, "-c", LAUNCH, mark, str(len(raw)), *settings.command]
        variables = _variables(base_url, key, self._run_id) | _of_container(await self._container.fresh(task))
        try:
            process = await KeptProcess.start(command, limits, AT_ONCE_BYTES, variables, has_folder=True)
        except OSError as error:
            raise EnvironmentFailed(f"{SETTING} cannot be started: {error.strerror}") from error
        try:
            await _give(process, raw)
            output, found, code = (await _relayed(process.stdout, mark)).rpartition(f"\n{mark} ")
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


def _variables(base_url: str, key: str, run_id: str) -> dict[str, str]:
    """Environment of a program. The gateway is on this machine: no proxy stands before it."""
    host = base_url.partition("://")[2].rpartition(":")[0].strip("[]")
    proxies = {name: ",".join(filter(None, (os.environ.get(name), host))) for name in ("no_proxy", "NO_PROXY")}
    return {
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": key,
        "ASYNCRL_REWARD_URL": f"{base_url.removesuffix('/v1')}/reward",
        "ASYNCRL_RUN": run_id,
        **proxies,
    }


def _of_container(container: Mapping[str, str] | None) -> dict[str, str]:
    """Variables that lead a program to its container."""
    prefix = "ASYNCRL_CONTAINER"
    keys = {"name": prefix, "runtime": f"{prefix}_RUNTIME", "label": f"{prefix}_LABEL"}
    return {keys[key]: value for key, value in container.items()} if container else {}


async def _give(process: KeptProcess, raw: bytes) -> None:
    process.stdin.write(raw)
    try:
        async with asyncio.timeout(START_S):
            await process.stdin.drain()
    except (ConnectionError, TimeoutError) as error:
        raise EnvironmentFailed(f"{SETTING} did not take its task: {await process.cause()}") from error


async def _relayed(stream: StreamReader, mark: str) -> str:
    """Print the program's output to stderr, within its allowance and without the mark; return the end of it."""
    allowance = OutputAllowance("agent program", AT_ONCE_BYTES, time.monotonic())
    tail = held = b""
    while chunk := await stream.read(CHUNK_BYTES):
        tail = (tail + chunk)[-TAIL_BYTES:]
        shown, held = without_mark(held + chunk, b"\n" + mark.encode())
        sys.stderr.buffer.write(shown[: allowance.admit(len(shown), time.monotonic())])
        sys.stderr.write(allowance.note(time.monotonic()))
    sys.stderr.write(allowance.note(time.monotonic(), last=True))
    return tail.decode("utf-8", "replace")


def without_mark(output: bytes, mark: bytes) -> tuple[bytes, bytes]:
    """The output up to where the mark begins, or may begin with what is still to come; and the rest."""
    if (place := output.find(mark)) < 0:
        place = output.rfind(mark[:1])
        if place < 0 or not mark.startswith(output[place:]):
            return output, b""
    return output[:place], output[place:]


def _no_steps(method: str) -> EnvironmentFailed:
    return EnvironmentFailed(f"an agent program has no {method}: it runs by itself", retryable=False)


# ── make ───────────────────────────────────────────────────────────────────────────────────────
# The environments that a run file names.


def make_environments(environment: Environment, run_id: str, node: str) -> AbstractAsyncContextManager[Environments]:
    """
    Workers, or agent programs: a context that starts them, and ends them with all that they have started.

    Raises:
        ConfigError: ``environment.command`` is no program, or none that the operator of this node allowed. Entering
            the context raises it if the environment cannot be loaded.
    """
    kind = Programs if environment.command else EnvironmentPool
    return kind(environment, run_id, node)
