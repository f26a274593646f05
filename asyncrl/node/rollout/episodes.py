"""The environments of a rollout's process, and the episodes that are played with them."""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from asyncrl.config.config import Config
from asyncrl.environment.make import make_environments
from asyncrl.rollout.conversing import require_seam
from asyncrl.rollout.engine import Engine
from asyncrl.rollout.episodes.episodes import Episodes
from asyncrl.rollout.episodes.pacing import paced
from asyncrl.rollout.gateway.gateway import Gateway
from asyncrl.rollout.gateway.server import serve

PROGRAMS_PER_CORE = 4
"""Agent programs that share a core, each a process of its own that mostly waits for the policy."""


@asynccontextmanager
async def open_episodes(
    config: Config, engine: Engine, *, run_id: str, node: str, slots: int
) -> AsyncIterator[Episodes | None]:
    """
    Start the workers of ``[environment]``, and end them with all that they have started; None without one.

    Raises:
        ConfigError: The environment cannot be loaded, or the engine cannot hold a conversation.
    """
    if not config.environment.is_set:
        yield None
        return
    conversing, environment = require_seam(engine), config.environment
    async with AsyncExitStack() as stack:
        environments = await stack.enter_async_context(make_environments(environment, run_id, node))
        gateway: Gateway | None = None
        if environments.description.kind != "steps":
            gateway = Gateway(stop=config.sampling.stop, as_template=environment.history == "as_template")
            await stack.enter_async_context(serve(gateway, environment.gateway))
        most = most_episodes(config, slots)
        episodes = Episodes(environment, environments, conversing, run=run_id, most=most, gateway=gateway)
        await stack.enter_async_context(paced(episodes, engine, slots))
        yield episodes


def most_episodes(config: Config, slots: int) -> int:
    """Episodes in hand at a time; 0 without an ``[environment]``."""
    if not config.environment.is_set:
        return 0
    if config.rollout.episodes:
        return config.rollout.episodes
    return min(2 * slots, PROGRAMS_PER_CORE * (os.cpu_count() or 1)) if config.environment.command else 2 * slots
