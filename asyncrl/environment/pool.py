"""
A pool of workers that run environments: processes that can be killed.

    open("run/train/17/3") ─▶ PooledEpisode ─┐            ┌─ worker: reset, step, step, ... of many episodes
    open("run/train/17/4") ─▶ PooledEpisode ─┼ WorkerSlot ┤
    open("run/train/18/0") ─▶ PooledEpisode ─┘            └─ worker

An environment is user code, called with text of a policy that writes whatever is rewarded: it may raise, hang, use up
the memory, or end its process. None of that harms this process, and none of it becomes a reward.
"""

import asyncio
from itertools import count
from types import TracebackType
from typing import Self

from asyncrl.config.sections.environment import Environment
from asyncrl.environment.calls import Suspects
from asyncrl.environment.episode import PooledEpisode
from asyncrl.environment.interface import Description
from asyncrl.environment.worker_process import named, require_allowed
from asyncrl.environment.worker_slot import WorkerSlot
from asyncrl.errors import ConfigError, EnvironmentFailed
from asyncrl.processes import folders


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
        self._slots = [WorkerSlot(environment, variables, suspects) for _ in range(environment.workers)]
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
            started = await asyncio.gather(*(slot.worker() for slot in self._slots), return_exceptions=True)
            for outcome in started:
                if isinstance(outcome, BaseException):
                    raise outcome
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
