"""The trainer's process: learner, publisher and actor, with further ranks as child processes."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path

import torch

from asyncrl.actor.link import Link
from asyncrl.client.connection import Connection
from asyncrl.client.handshake import Identity, spool_links, weights_links
from asyncrl.client.images import ImageCache
from asyncrl.client.run_address import RunAddress
from asyncrl.config.config import from_json
from asyncrl.files.access import restrict_umask
from asyncrl.messages.session import Welcome
from asyncrl.messages.weights import Member
from asyncrl.node.machine.local_address import local_address
from asyncrl.node.model_files import local_copies, require_same_models, with_copies
from asyncrl.node.process.service_manager import service_manager
from asyncrl.node.runner import (
    await_with_beats,
    collect_earlier_models,
    join_steadily,
    load_with_beats,
    run_sessions,
    serve,
    unless_told,
)
from asyncrl.node.trainer.checkpoint_copies import checkpoint_sender, fetch_checkpoint
from asyncrl.node.trainer.checkpoint_folder import checkpoint_folder
from asyncrl.node.trainer.first_rank import Work
from asyncrl.node.trainer.learner import load_learner
from asyncrl.node.trainer.machines import DRAIN_S, machine_hello, train_together
from asyncrl.node.trainer.place import Session, only_machine
from asyncrl.node.trainer.ranks import with_ranks
from asyncrl.node.turn import first_turn
from asyncrl.trainer.actor import Start, TrainerActor
from asyncrl.trainer.checkpoints.checkpoint import Tokenizer
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.ranks.rank_hub import NoOtherRanks, OtherRanks
from asyncrl.trainer.ranks.ranks import Ranks
from asyncrl.trainer.trainable import Sleepable, Trainable
from asyncrl.weights.contents.layout import Layout, TensorSpec
from asyncrl.weights.groups.device import device_name, empty_cache, staging_device, torch_device
from asyncrl.weights.publish import Publisher
from asyncrl.weights.stored.upload import Uploader


async def run_trainer(
    run: RunAddress, who: Identity, *, wait_s: float, stopping: asyncio.Event, may_fetch: bool = True
) -> None:
    """
    Train until the run is over or ``stopping`` is set, from the newest checkpoint of the run if there is one.

    If the broker restarts, or another machine of the trainer is lost, all ranks start again from the newest checkpoint.

    Args:
        may_fetch: Fetch a model that this machine lacks from the broker's.

    Raises:
        LinkError, ConfigError: The trainer could not start, or the broker is gone.
        RankDied: Another rank of this machine is gone.
    """

    images = ImageCache()
    """Cache of pictures that outlives the sessions, so that no picture is fetched twice."""

    async def session(who: Identity, link: Link, welcome: Welcome) -> None:
        models = local_copies(welcome, run, who, may_fetch=may_fetch)
        copies = await unless_told(stopping, await_with_beats(link, welcome.beat_s, models))
        local = with_copies(welcome, copies)
        config = from_json(local.config)
        if service_manager().owns_process:
            restrict_umask(group_reads=config.run.share_with_group)
        interface = await asyncio.to_thread(local_address, run.broker, config.weights.interface)
        joined = Session(config, run, who, welcome, interface, copies)

        def work(link: Link) -> Work:
            return partial(
                _train,
                run=run,
                who=who,
                link=link,
                welcome=local,
                interface=interface,
                images=images,
                stopping=stopping,
            )

        if config.trainer.nodes == 1:
            checkpoint = fetch_checkpoint(welcome, run, who)
            await unless_told(stopping, await_with_beats(link, welcome.beat_s, checkpoint))
            if config.rollout.colocated:
                collect_earlier_models()
                empty_cache(config.trainer.device)
                link = await first_turn(link, welcome.beat_s, stopping)
            await with_ranks(joined, work(link), only_machine(who.node, config.trainer.ranks))
        else:
            await train_together(joined, link, work, stopping)

    who, link, welcome = await unless_told(stopping, join_steadily(run, who, wait_s, machine_hello))
    await run_sessions(session, who, link, welcome, run=run, wait_s=wait_s, stopping=stopping, make_hello=machine_hello)


async def _train(
    form: Callable[[], Ranks],
    others: OtherRanks,
    *,
    run: RunAddress,
    who: Identity,
    link: Link,
    welcome: Welcome,
    interface: str,
    images: ImageCache,
    stopping: asyncio.Event,
) -> None:
    config = from_json(welcome.config)
    checkpoints = checkpoint_folder(welcome)

    def load() -> tuple[Learner, Tokenizer, Start]:
        require_same_models(welcome)
        return load_learner(config, checkpoints, form, welcome.run_id)

    learner, tokenizer, start = await load_with_beats(link, welcome.beat_s, load)
    await serve_trainer(
        learner,
        learner.specs(),
        tokenizer,
        start,
        run=run,
        who=who,
        link=link,
        welcome=welcome,
        interface=interface,
        checkpoints=checkpoints,
        stopping=stopping,
        device=torch_device(device_name(config.trainer.device)),  # that of rank 0
        shared=learner if config.rollout.colocated else None,
        images=images,
        others=others,
    )


async def serve_trainer(
    learner: Trainable,
    specs: Sequence[TensorSpec],
    tokenizer: Tokenizer,
    start: Start,
    *,
    run: RunAddress,
    who: Identity,
    link: Link,
    welcome: Welcome,
    interface: str,
    checkpoints: Path,
    stopping: asyncio.Event,
    device: torch.device,
    shared: Sleepable | None = None,
    images: ImageCache | None = None,
    others: OtherRanks = NoOtherRanks(),  # noqa: B008  stateless
) -> None:
    """
    Run the trainer's actor for one session, with a publisher and spool links that close with it.

    Args:
        interface: Address of this machine on which its process groups listen.
        checkpoints: Folder of the run's checkpoints.
        device: Device of the learner's model.
        shared: The learner, if it shares its devices with rollouts.
        images: Pictures of earlier sessions; None starts without any.
    """
    config = from_json(welcome.config)
    layout = Layout(specs, config.weights.bucket_bytes)
    staged_on = staging_device(config.weights.backend, device)
    member = Member(who.node, who.incarnation)
    publisher = Publisher(
        layout, member, link.send, config.weights, interface=interface, device=staged_on, beside=device
    )
    uploader = Uploader(layout, publisher.copies, config.weights.anchor_every, weights_links(welcome.spools, who, run))
    actor = TrainerActor(
        config,
        learner,
        publisher,
        Connection(who, link, spool_links(welcome.spools, who, run)),
        tokenizer=tokenizer,
        layout_hash=layout.hash,
        checkpoints=checkpoints,
        start=start,
        run_id=welcome.run_id,
        uploader=uploader,
        sender=checkpoint_sender(checkpoints, welcome, run, who),
        others=others,
        device=device,
        shared=shared,
        images=images,
        on_drain=stopping.set,
    )
    async with aclosing(publisher), aclosing(uploader):
        await serve(
            actor,
            link,
            beat_s=welcome.beat_s,
            stopping=stopping,
            drain=actor.drain,
            drain_s=DRAIN_S,
            limits=config.broker,
        )
