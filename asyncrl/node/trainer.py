"""Builds the trainer's process: learner, publisher, and the actor between them."""

import asyncio
from pathlib import Path

import torch
from transformers import AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from asyncrl.actor.greeting import Identity, join, leave, spool_link
from asyncrl.config import Config, from_json
from asyncrl.errors import AsyncrlError
from asyncrl.messages import Member
from asyncrl.node.serving import loading, serve
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.trainer.actor import TrainerActor
from asyncrl.trainer.checkpoint import Saves
from asyncrl.trainer.learner import Learner
from asyncrl.weights.plan import Plan
from asyncrl.weights.publish import Publisher


async def run_trainer(address: str, who: Identity, *, wait_s: float, stopping: asyncio.Event) -> None:
    """
    Train until the run is over or ``stopping`` is set.

    Raises:
        LinkError, ConfigError: It could not start, or the broker is gone.
    """
    link, welcome = await join(address, who, wait_s)
    config = from_json(welcome.config)
    try:
        learner, tokenizer = await loading(link, welcome.beat_s, lambda: _learner(config))
    except AsyncrlError as error:
        await leave(link, str(error))
        raise
    plan = Plan(learner.specs(), config.weights.bucket_bytes)
    publisher = Publisher(plan, Member(who.node, who.incarnation), link.send, config.weights)
    spool = spool_link(welcome, who)
    actor = TrainerActor(
        config,
        learner,
        publisher,
        link,
        spool,
        tokenizer=tokenizer,
        plan_hash=plan.hash,
        checkpoints=RunDirectory(Path(welcome.run_dir)).checkpoints,
    )
    try:
        await serve(actor, link, beat_s=welcome.beat_s, stopping=stopping)
    finally:
        await publisher.aclose()
        await spool.aclose()


def _learner(config: Config) -> tuple[Learner, Saves]:
    torch.set_num_threads(config.trainer.threads)
    torch.manual_seed(config.run.seed)
    disable_progress_bar()  # a log is not a terminal
    path = Path(config.model.path)
    return Learner(config, path), AutoTokenizer.from_pretrained(path, local_files_only=True)
