"""Builds the trainer's process: learner, publisher, and the actor between them."""

import asyncio
from functools import partial
from pathlib import Path

import structlog
import torch
from transformers import AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from asyncrl.actor.greeting import Identity, join, leave, spool_link
from asyncrl.actor.zmq_link import ZmqLink
from asyncrl.config import Config, from_json
from asyncrl.errors import AsyncrlError
from asyncrl.messages import Member, Welcome
from asyncrl.node.serving import loading, serve, through_restarts
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.trainer import checkpoint
from asyncrl.trainer.actor import Start, TrainerActor
from asyncrl.trainer.checkpoint import Saves
from asyncrl.trainer.learner import Learner
from asyncrl.weights.device import staging_device
from asyncrl.weights.plan import Plan
from asyncrl.weights.publish import Publisher

log = structlog.get_logger()


async def run_trainer(address: str, who: Identity, *, wait_s: float, stopping: asyncio.Event) -> None:
    """
    Train until the run is over or ``stopping`` is set, from the newest checkpoint of the run if there is one.

    If the broker starts again, so does this, from the newest checkpoint.

    Raises:
        LinkError, ConfigError: It could not start, or the broker is gone.
    """
    link, welcome = await join(address, who, wait_s)
    await through_restarts(partial(_train, stopping), who, link, welcome, wait_s)


async def _train(stopping: asyncio.Event, who: Identity, link: ZmqLink, welcome: Welcome) -> None:
    """One session with a broker."""
    config = from_json(welcome.config)
    directory = RunDirectory(Path(welcome.run_dir))
    try:
        learner, tokenizer, start = await loading(link, welcome.beat_s, lambda: _learner(config, directory))
    except AsyncrlError as error:
        await leave(link, str(error))
        raise
    plan = Plan(learner.specs(), config.weights.bucket_bytes)
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
        plan_hash=plan.hash,
        checkpoints=directory.checkpoints,
        start=start,
    )
    try:
        await serve(actor, link, beat_s=welcome.beat_s, stopping=stopping)
    finally:
        await publisher.aclose()
        await spool.aclose()


def _learner(config: Config, directory: RunDirectory) -> tuple[Learner, Saves, Start]:
    """Of the newest checkpoint that can be read, or of the base model."""
    torch.set_num_threads(config.trainer.threads)
    torch.manual_seed(config.run.seed)
    disable_progress_bar()  # a log is not a terminal
    base = Path(config.model.path)
    tokenizer = AutoTokenizer.from_pretrained(base, local_files_only=True)
    if (found := checkpoint.newest_sound(directory.checkpoints)) is None:
        return Learner(config, base), tokenizer, Start()
    folder, manifest = found
    log.info("trainer.resumed", checkpoint=str(folder), step=manifest.step, policy_version=manifest.policy_version)
    learner = Learner(config, folder, reference_path=base)
    learner.resume(manifest.step, checkpoint.read_optimizer(folder))
    checkpoint.restore_random_state(manifest)
    return learner, tokenizer, Start(manifest.step, manifest.policy_version, str(folder), manifest.stepped)
