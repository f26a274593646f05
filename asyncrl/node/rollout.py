"""Builds a rollout's process: the engine, the receiver of weights, and the actor between them."""

import asyncio

import torch
from transformers.utils.logging import disable_progress_bar

from asyncrl.actor.greeting import Identity, join, leave, spool_link
from asyncrl.config import Config, from_json
from asyncrl.errors import AsyncrlError
from asyncrl.messages import Member
from asyncrl.node.serving import loading, serve
from asyncrl.rollout.actor import RolloutActor
from asyncrl.rollout.engines.transformers import TransformersEngine
from asyncrl.weights.plan import Plan
from asyncrl.weights.receive import Receiver


async def run_rollout(address: str, who: Identity, *, wait_s: float, stopping: asyncio.Event) -> None:
    """
    Serve as a rollout until the run is over, or until ``stopping`` is set and what is in hand is done.

    Raises:
        LinkError, ConfigError: It could not start, or the broker is gone.
    """
    link, welcome = await join(address, who, wait_s)
    config = from_json(welcome.config)
    try:
        engine = await loading(link, welcome.beat_s, lambda: _engine(config))
    except AsyncrlError as error:
        await leave(link, str(error))
        raise
    plan = Plan(engine.specs(), config.weights.bucket_bytes)
    receiver = Receiver(plan, Member(who.node, who.incarnation), link.send, config.weights)
    spool = spool_link(welcome, who)
    actor = RolloutActor(
        engine,
        link,
        spool,
        node=who.node,
        incarnation=who.incarnation,
        slots=config.rollout.slots,
        group_size=config.schedule.group_size,
        receiver=receiver,
        plan_hash=plan.hash,
        partial_rollout=config.schedule.partial_rollout,
    )
    try:
        await serve(
            actor,
            link,
            beat_s=welcome.beat_s,
            stopping=stopping,
            drain=lambda: actor.drain(config.rollout.drain_s),
        )
    finally:
        await engine.aclose()
        await receiver.aclose()
        await spool.aclose()


def _engine(config: Config) -> TransformersEngine:
    torch.set_num_threads(config.rollout.threads)
    disable_progress_bar()  # a log is not a terminal
    return TransformersEngine.load(
        config.model.path,
        slots=config.rollout.slots,
        max_tokens_per_slot=config.data.max_prompt_tokens + config.sampling.max_tokens,
        kv=config.rollout.kv,
        dtype=config.model.dtype,
    )
