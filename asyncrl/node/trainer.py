"""Builds the trainer's process: learner, publisher, the actor between them, and further ranks beside it."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from asyncrl.actor.zmq_link import ZmqLink
from asyncrl.client.handshake import Identity, join, leave, spool_link
from asyncrl.config.sections import Config, from_json
from asyncrl.errors import AsyncrlError
from asyncrl.messages import Member, Welcome
from asyncrl.node.learner import load_learner
from asyncrl.node.ranks import Tell, with_ranks
from asyncrl.node.runner import loading, serve, through_restarts
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.trainer.actor import TrainerActor
from asyncrl.trainer.ranks.ranks import Ranks
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.groups.device import staging_device
from asyncrl.weights.publish import Publisher


async def run_trainer(address: str, who: Identity, *, wait_s: float, stopping: asyncio.Event) -> None:
    """
    Train until the run is over or ``stopping`` is set, from the newest checkpoint of the run if there is one.

    If the broker starts again, so does this, from the newest checkpoint, and so do the other ranks.

    Raises:
        LinkError, ConfigError: It could not start, or the broker is gone.
        RankDied: Another process of the trainer is gone.
    """
    link, welcome = await join(address, who, wait_s)
    await through_restarts(partial(_session, stopping), who, link, welcome, wait_s)


async def _session(stopping: asyncio.Event, who: Identity, link: ZmqLink, welcome: Welcome) -> None:
    """One session with a broker."""
    config = from_json(welcome.config)
    work = partial(_train, stopping=stopping, config=config, who=who, link=link, welcome=welcome)
    await with_ranks(config, who, welcome, work)


async def _train(
    form: Callable[[], Ranks],
    tell: Tell,
    *,
    stopping: asyncio.Event,
    config: Config,
    who: Identity,
    link: ZmqLink,
    welcome: Welcome,
) -> None:
    directory = RunDirectory(Path(welcome.run_dir))
    try:
        loaded = await loading(link, welcome.beat_s, partial(load_learner, config, directory, form))
    except AsyncrlError as error:
        await leave(link, str(error))
        raise
    learner, tokenizer, start = loaded
    plan = Layout(learner.specs(), config.weights.bucket_bytes)
    device = staging_device(config.weights.backend)
    publisher = Publisher(plan, Member(who.node, who.incarnation), link.send, config.weights, device=device)
    spool = spool_link(welcome, who)
    actor = TrainerActor(
        config,
        learner,
        publisher,
        link,
        spool,
        tokenizer=tokenizer,
        layout_hash=plan.hash,
        checkpoints=directory.checkpoints,
        start=start,
        tell=tell,
    )
    try:
        await serve(actor, link, beat_s=welcome.beat_s, stopping=stopping)
    finally:
        await publisher.aclose()
        await spool.aclose()
