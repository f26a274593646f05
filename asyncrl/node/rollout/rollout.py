"""A rollout's process: the configured engine, attached to the broker."""

import asyncio

from asyncrl.actor.link import Link
from asyncrl.client.handshake import Identity
from asyncrl.client.run_address import RunAddress
from asyncrl.config.config import from_json
from asyncrl.messages.words import WeightsVia
from asyncrl.node.embedding.host import Host
from asyncrl.node.model_files import local_copies, require_same_models, with_copies
from asyncrl.node.rollout.engine import load_engine
from asyncrl.node.rollout.sessions import roll_out
from asyncrl.node.runner import await_with_beats, join_steadily, load_with_beats, unless_told
from asyncrl.node.turn import first_turn
from asyncrl.rollout.engine import Engine


async def run_rollout(
    run: RunAddress,
    who: Identity,
    *,
    wait_s: float,
    stopping: asyncio.Event,
    weights: WeightsVia = "collective",
    may_fetch: bool = True,
) -> None:
    """
    Generate trajectories until the run is over, or until ``stopping`` is set and the rollout has drained.

    Args:
        may_fetch: Fetch a model that this machine lacks from the broker's.

    Raises:
        ConfigError: The engine is not installed, or needs more devices than this process may use; or this machine has
            another model than the broker's.
        LinkError, EngineDied: The rollout could not start, or the broker is gone.
    """
    who, link, welcome = await unless_told(stopping, join_steadily(run, who, wait_s))
    fetching = local_copies(welcome, run, who, may_fetch=may_fetch)
    welcome = with_copies(welcome, await unless_told(stopping, await_with_beats(link, welcome.beat_s, fetching)))
    config = from_json(welcome.config)

    def load() -> Engine:
        require_same_models(welcome)
        return load_engine(config)

    turn: Link = link
    if config.rollout.colocated:
        turn = await first_turn(link, welcome.beat_s, stopping)
    engine = await load_with_beats(turn, welcome.beat_s, load)
    try:
        await roll_out(
            engine,
            run,
            who,
            turn,
            welcome,
            wait_s=wait_s,
            slots=config.rollout.slots,
            weights=weights,
            stopping=stopping,
            host=Host(grace_s=0.0),
        )
    finally:
        await engine.aclose()
