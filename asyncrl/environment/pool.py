"""
A pool of workers that run environments: processes that can be killed.

    open("run/train/17/3") ─▶ PooledEpisode ─┐            ┌─ worker: reset, step, step, ... of many episodes
    open("run/train/17/4") ─▶ PooledEpisode ─┼ a slot ────┤
    open("run/train/18/0") ─▶ PooledEpisode ─┘            └─ worker

An environment is user code, called with text of a policy that writes whatever is rewarded: it may raise, hang, use up
the memory, or end its process. None of that harms this process, and none of it becomes a reward.
"""

import asyncio
import base64
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from itertools import count
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
from msgspec import Struct

from asyncrl.config.sections.environment import Environment
from asyncrl.environment.interface import Answer, Description, Environments, PolicyTurn, Score, TaskInput
from asyncrl.environment.program import Programs
from asyncrl.environment.workers import EnvironmentProcess, EnvironmentSlot, Suspects, lost_with, named, require_allowed
from asyncrl.errors import ConfigError, EnvironmentFailed
from asyncrl.log import get_logger
from asyncrl.workers import folders
from asyncrl.workers.worker import start_all

# ── episode ───────────────────────────────────────────────────────────────────────────────────
# The environment of one episode, in a worker of the pool: `asyncrl.environment.interface.EnvironmentEpisode`.

CLOSE_S = 6.0
"""Seconds that `close` waits; a second more than a worker gives an environment."""

log = get_logger()
T = TypeVar("T", bound=Struct)


class EpisodePhase(Struct):
    state: str


class Nothing(Struct): ...


class PooledEpisode:
    """Bound to a worker by its first call; if that is lost, the episode is lost."""

    def __init__(
        self, name: str, number: int, slot: EnvironmentSlot, on_closed: "Callable[[PooledEpisode], None]"
    ) -> None:
        self.name = name
        self.slot = slot
        self._number = number
        self._on_closed = on_closed
        self._worker: EnvironmentProcess | None = None
        self._is_closed = False

    async def reset(self, task: TaskInput, /) -> Answer:
        return await self._call("reset", Answer, task=task)

    async def step(self, said: PolicyTurn, /) -> Answer:
        return await self._call("step", Answer, said=said)

    async def score(self) -> Score:
        return await self._call("score", Score)

    async def snapshot(self) -> bytes:
        return base64.b64decode((await self._call("snapshot", EpisodePhase)).state)

    async def restore(self, task: TaskInput, state: bytes, /) -> None:
        await self._call("restore", Nothing, task=task, state=base64.b64encode(state).decode())

    async def solve(self, task: TaskInput, base_url: str, key: str, /) -> Score:
        return await self._call("solve", Score, is_limited=False, task=task, base_url=base_url, key=key)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._worker is not None and self._worker.loss is None:
                await self._close(self._worker)
        finally:
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


# ── pool ──────────────────────────────────────────────────────────────────────────────────────


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
        self._open: set[PooledEpisode] = set()
        self._numbers = count(1)
        self._is_closed = False

    @property
    def replaced(self) -> int:
        """Number of workers so far that hung or died."""
        return sum(slot.replaced for slot in self._slots)

    async def start(self) -> None:
        """
        Start all workers and load the environment in each; remove what killed nodes have left on this machine.

        Raises:
            ConfigError: It cannot be loaded, or workers describe it differently. None is left running.
        """
        require_allowed(self._environment)
        await asyncio.to_thread(folders.sweep)
        try:
            await start_all(self._slots)
            self.description = self._agreed()
        except BaseException:
            await self.aclose()
            raise

    def open(self, name: str, /) -> PooledEpisode:
        """Open an episode on the worker that has fewest; raises `EnvironmentFailed` after `aclose`."""
        if self._is_closed:
            raise EnvironmentFailed("the environments of this rollout were closed")
        slot = min(self._slots, key=lambda slot: slot.episodes)
        slot.episodes += 1
        episode = PooledEpisode(name, next(self._numbers), slot, self._closed)
        self._open.add(episode)
        return episode

    async def aclose(self) -> None:
        """Close all episodes, then kill every worker and what it has started. Idempotent."""
        self._is_closed = True
        await asyncio.gather(*(episode.close() for episode in list(self._open)), return_exceptions=True)
        await asyncio.gather(*(slot.clear() for slot in self._slots))

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
        return first


# ── make ──────────────────────────────────────────────────────────────────────────────────────
# The environments that a run file names.


def make_environments(environment: Environment, run_id: str, node: str) -> AbstractAsyncContextManager[Environments]:
    """
    Workers, or agent programs: a context that starts them, and ends them with all that they have started.

    Raises:
        ConfigError: ``environment.command`` is no program, or none that the operator of this node allowed. Entering
            the context raises it if the environment cannot be loaded.
    """
    return Programs(environment, run_id) if environment.command else EnvironmentPool(environment, run_id, node)
