"""The trainer's process: learner, publisher and actor, with further ranks as child processes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from asyncrl.config.config import Config
from asyncrl.config.model.directory import check_model
from asyncrl.files.access import restrict_umask
from asyncrl.log import get_logger
from asyncrl.messages.weights import Member
from asyncrl.runtime.local_address import local_address
from asyncrl.runtime.model_files import local_copies, require_same_models
from asyncrl.runtime.process import StopEvent
from asyncrl.runtime.ranks import only_machine, with_ranks
from asyncrl.runtime.service_manager import service_manager
from asyncrl.runtime.sessions import NodeSession, RunNode, collect_earlier_models
from asyncrl.runtime.trainer_machines import (
    DRAIN_S,
    checkpoint_folder,
    checkpoint_sender,
    fetch_checkpoint,
    train_together,
)
from asyncrl.trainer.actor import Start, TrainerActor
from asyncrl.trainer.checkpoints import checkpoint
from asyncrl.trainer.checkpoints.checkpoint import Tokenizer
from asyncrl.trainer.checkpoints.snapshot import TENSORS, open_tensors
from asyncrl.trainer.checkpoints.writer import PromptFiles, newest_of_all
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.ranks.rank_hub import NoOtherRanks, OtherRanks
from asyncrl.trainer.ranks.ranks import Ranks, SingleRank
from asyncrl.trainer.trainable import Sleepable, Trainable
from asyncrl.weights.contents.layout import Layout, TensorSpec
from asyncrl.weights.groups.device import device_name, empty_cache, make_current, require, staging_device, torch_device
from asyncrl.weights.publish import Publisher
from asyncrl.weights.stored.upload import Uploader
from asyncrl.wire.handshake import weights_links
from asyncrl.wire.spools import ImageCache

# ── learner ───────────────────────────────────────────────────────────────────────────────────
# Loads the learner of a trainer rank from the newest readable checkpoint, or from the base model.

log = get_logger()


def load_learner(
    config: Config, checkpoints: Path, form: Callable[[], Ranks], run_id: str = "", *, is_reader: bool = True
) -> tuple[Learner, PromptFiles, Start]:
    """
    Load the learner, the files of its tokenizer, and the progress to resume from. Collective: every rank calls it with
    ``form``, which forms the group of all ranks.

    Args:
        checkpoints: Folder of this machine's checkpoints.
        is_reader: True for one rank of each machine, which finds and copies checkpoints.

    Raises:
        ConfigError: The model does not exist, or cannot be trained as configured or on this machine.
        LedgerError: The newest checkpoint belongs to another run than ``run_id``.
        RankDied: Another rank is gone.
    """
    torch.set_num_threads(config.trainer.threads)
    torch.manual_seed(config.run.seed)
    disable_progress_bar()  # a log is not a terminal
    require(config.trainer.device)
    base = Path(config.model.path)
    check_model(config.model.path, config.model.overrides)
    tokenizer = PromptFiles(base)
    ranks = form()
    make_current(ranks.device)
    keep = 0 if config.checkpoint.keep_best else config.checkpoint.keep  # copies must not push out the best
    folder, damaged = newest_of_all(checkpoints, ranks, is_reader=is_reader, keep=keep)
    if folder is None:
        return Learner(config, base, ranks=ranks), tokenizer, Start(damaged=damaged)
    manifest = checkpoint.read_manifest(folder)
    checkpoint.require_run(folder, manifest, run_id)
    log.info("trainer.resumed", checkpoint=str(folder), steps=manifest.step, policy_version=manifest.policy_version)
    # In a LoRA checkpoint's model, the adapters are merged; resuming needs the base model and separate adapters.
    learner = Learner(config, base if config.trainer.lora.rank else folder, reference_path=base, ranks=ranks)
    with open_tensors(folder / TENSORS, manifest.files) as tensors:
        learner.resume(manifest.step, tensors, manifest.state)
    checkpoint.restore_random_state(manifest)
    return learner, tokenizer, Start(manifest.step, manifest.policy_version, str(folder), manifest.stepped, damaged)


# ── trainer ───────────────────────────────────────────────────────────────────────────────────


async def run_trainer(node: RunNode, stopping: StopEvent, *, may_fetch: bool = True) -> None:
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
    async with node.part_of_run(stopping):
        async for session in node.sessions():
            async with session:
                await _take_part(node, session, images, may_fetch=may_fetch)
            collect_earlier_models()


async def _take_part(node: RunNode, session: NodeSession, images: ImageCache, *, may_fetch: bool) -> None:
    """Train until the session ends."""
    models = local_copies(session.welcome, node.run, session.who, may_fetch=may_fetch)
    session.copies = await session.wait_for(models)
    config = session.config
    if service_manager().owns_process:  # What it writes has the access that the run's files have.
        restrict_umask(group_reads=config.run.share_with_group)
    interface = await asyncio.to_thread(local_address, node.run.broker, config.weights.interface)
    if config.trainer.nodes > 1:
        await train_together(session, interface, partial(_train, interface=interface, images=images))
        return
    await session.wait_for(fetch_checkpoint(session.welcome, node.run, session.who))
    if config.rollout.colocated:
        empty_cache(config.trainer.device)
        await session.take_turn()
    train = partial(_train, session, interface, images)
    if config.trainer.ranks == 1:
        await train(form=partial(SingleRank, config.trainer.device), others=NoOtherRanks())
    else:
        place = only_machine(session.who.node, config.trainer.ranks, interface)
        await with_ranks(session, train, place)


async def _train(
    session: NodeSession, interface: str, images: ImageCache, *, form: Callable[[], Ranks], others: OtherRanks
) -> None:
    """Train from the newest checkpoint on, as the first of the ranks that ``form`` brings together."""
    config, checkpoints = session.config, checkpoint_folder(session.welcome)

    def load() -> tuple[Learner, Tokenizer, Start]:
        require_same_models(session.welcome)
        return load_learner(config, checkpoints, form, session.welcome.run_id)

    learner, tokenizer, start = await session.load(load)
    async with trainer_actor(
        session,
        learner,
        learner.policy.specs(),
        tokenizer,
        start,
        interface=interface,
        checkpoints=checkpoints,
        device=torch_device(device_name(config.trainer.device)),  # that of rank 0
        shared=learner if config.rollout.colocated else None,
        images=images,
        others=others,
    ) as actor:
        await session.serve(actor, drain=actor.drain, drain_s=DRAIN_S, limits=config.broker)


@asynccontextmanager
async def trainer_actor(
    session: NodeSession,
    learner: Trainable,
    specs: Sequence[TensorSpec],
    tokenizer: Tokenizer,
    start: Start,
    *,
    interface: str,
    checkpoints: Path,
    device: torch.device,
    shared: Sleepable | None = None,
    images: ImageCache | None = None,
    others: OtherRanks = NoOtherRanks(),  # noqa: B008  stateless
) -> AsyncIterator[TrainerActor]:
    """
    The trainer's actor for one session, with a publisher and an uploader that close with it.

    Args:
        interface: Address of this machine on which its process groups listen.
        checkpoints: Folder of the run's checkpoints.
        device: Device of the learner's model.
        shared: The learner, if it shares its devices with rollouts.
        images: Pictures of earlier sessions; None starts without any.
    """
    config, welcome, link, who = session.config, session.welcome, session.link, session.who
    layout = Layout(specs, config.weights.bucket_bytes)
    staged_on = staging_device(config.weights.backend, device)
    member = Member(who.node, who.incarnation)
    publisher = Publisher(
        layout, member, link.send, config.weights, interface=interface, device=staged_on, beside=device
    )
    copies = weights_links(welcome.spools, who, session.run)
    uploader = Uploader(layout, publisher.copies, config.weights.anchor_every, copies)
    async with aclosing(publisher), aclosing(uploader):
        yield TrainerActor(
            config,
            learner,
            publisher,
            session.connection(),
            tokenizer=tokenizer,
            layout_hash=layout.hash,
            checkpoints=checkpoints,
            start=start,
            run_id=welcome.run_id,
            uploader=uploader,
            sender=checkpoint_sender(checkpoints, welcome, session.run, who),
            others=others,
            device=device,
            shared=shared,
            images=images,
            on_drain=session.stopping.set,
        )
