"""The reward process: a pool of worker processes, and the actor that feeds it."""

from asyncrl.reward.actor import RewardActor
from asyncrl.reward.workers.pool import WorkerPool
from asyncrl.runtime.process import StopEvent
from asyncrl.runtime.sessions import RunNode


async def run_reward(node: RunNode, stopping: StopEvent) -> None:
    """
    Score trajectories until the run is over or ``stopping`` is set. The workers outlive a restart of the broker.

    Raises:
        LinkError, ConfigError: The node could not start, or the broker is gone.
    """
    pool: WorkerPool | None = None
    try:
        async with node.part_of_run(stopping):
            async for session in node.sessions():
                if pool is None:
                    pool = WorkerPool(session.config.reward)
                    await session.wait_for(pool.start())
                async with session:
                    actor = RewardActor(pool=pool, connection=session.connection(), on_drain=stopping.set)
                    await session.serve(actor)
    finally:
        if pool:
            await pool.aclose()
