"""The environments of a rollout's process, and the episodes that are played with them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from asyncrl.config.sections import Config
from asyncrl.environment.pool import EnvironmentPool
from asyncrl.rollout.conversing import require_seam
from asyncrl.rollout.engine import Engine
from asyncrl.rollout.episodes.episodes import Episodes


@asynccontextmanager
async def open_episodes(config: Config, engine: Engine, *, run_id: str, node: str) -> AsyncIterator[Episodes | None]:
    """
    Start the workers of ``[environment]``, and end them with all that they have started; None without one.

    Raises:
        ConfigError: The environment cannot be loaded, or the engine cannot hold a conversation.
    """
    if not config.environment.is_set:
        yield None
        return
    conversing = require_seam(engine)
    async with EnvironmentPool(config.environment, run_id, node) as environments:
        yield Episodes(config.environment, environments, conversing, run=run_id)
