"""The environments of a rollout's process, and the episodes that are played with them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from asyncrl.config.sections import Config
from asyncrl.environment.pool import EnvironmentPool
from asyncrl.rollout.conversing import require_seam
from asyncrl.rollout.engine import Engine
from asyncrl.rollout.episodes.episodes import Episodes
from asyncrl.rollout.gateway.gateway import Gateway
from asyncrl.rollout.gateway.server import serve


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
    conversing, environment = require_seam(engine), config.environment
    async with EnvironmentPool(environment, run_id, node) as environments:
        if environments.description.kind == "steps":
            yield Episodes(environment, environments, conversing, run=run_id)
            return
        gateway = Gateway(stop=config.sampling.stop, as_template=environment.history == "as_template")
        async with serve(gateway, environment.gateway):
            yield Episodes(environment, environments, conversing, run=run_id, gateway=gateway)
