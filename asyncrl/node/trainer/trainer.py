"""The trainer's process: learner, publisher and actor, with further ranks as child processes."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from asyncrl.actor.zmq_link import ZmqLink
from asyncrl.client.connection import Connection
from asyncrl.client.handshake import Identity, join, spool_link
from asyncrl.config.sections import from_json
from asyncrl.messages import Member, Welcome
from asyncrl.node.runner import load_with_beats, run_sessions, serve
from asyncrl.node.trainer.learner import load_learner
from asyncrl.node.trainer.ranks import Broadcast, with_ranks
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.trainer.actor import Start, TrainerActor
from asyncrl.trainer.checkpoints.checkpoint import Tokenizer
from asyncrl.trainer.ranks.ranks import Ranks
from asyncrl.trainer.trainable import Trainable
from asyncrl.weights.contents.layout import Layout, TensorSpec
from asyncrl.weights.groups.device import staging_device
from asyncrl.weights.publish import Publisher


async def run_trainer(address: str, who: Identity, *, wait_s: float, stopping: asyncio.Event) -> None:
    """
    Train until the run is over or ``stopping`` is set, from the newest checkpoint of the run if there is one.

    If the broker restarts, all ranks start again from the newest checkpoint.

    Raises:
        LinkError, ConfigError: The trainer could not start, or the broker is gone.
        RankDied: Another rank is gone.
    """

    async def session(who: Identity, link: ZmqLink, welcome: Welcome) -> None:
        work = partial(_train, who=who, link=link, welcome=welcome, stopping=stopping)
        await with_ranks(from_json(welcome.config), who, welcome, work)

    link, welcome = await join(address, who, wait_s)
    await run_sessions(session, who, link, welcome, wait_s)


async def _train(
    form: Callable[[], Ranks],
    broadcast: Broadcast,
    *,
    who: Identity,
    link: ZmqLink,
    welcome: Welcome,
    stopping: asyncio.Event,
) -> None:
    config = from_json(welcome.config)
    directory = RunDirectory(Path(welcome.run_dir))
    load = partial(load_learner, config, directory, form)
    learner, tokenizer, start = await load_with_beats(link, welcome.beat_s, load)
    await serve_trainer(
        learner,
        learner.specs(),
        tokenizer,
        start,
        who=who,
        link=link,
        welcome=welcome,
        stopping=stopping,
        broadcast=broadcast,
    )


async def serve_trainer(
    learner: Trainable,
    specs: Sequence[TensorSpec],
    tokenizer: Tokenizer,
    start: Start,
    *,
    who: Identity,
    link: ZmqLink,
    welcome: Welcome,
    stopping: asyncio.Event,
    broadcast: Broadcast = lambda _: None,
) -> None:
    """Run the trainer's actor for one session, with a publisher and a spool link that close with it."""
    config = from_json(welcome.config)
    layout = Layout(specs, config.weights.bucket_bytes)
    device = staging_device(config.weights.backend)
    publisher = Publisher(layout, Member(who.node, who.incarnation), link.send, config.weights, device=device)
    spool = spool_link(welcome, who)
    actor = TrainerActor(
        config,
        learner,
        publisher,
        Connection(who, link, spool),
        tokenizer=tokenizer,
        layout_hash=layout.hash,
        checkpoints=RunDirectory(Path(welcome.run_dir)).checkpoints,
        start=start,
        broadcast=broadcast,
    )
    try:
        await serve(actor, link, beat_s=welcome.beat_s, stopping=stopping)
    finally:
        await publisher.aclose()
        await spool.aclose()
