"""
The whole loop on one page: five roles as tasks of one process, connected by links in memory.

    broker ─Lease─▶ rollout ─Put─▶ spool ─Stored─▶ broker ─Grade─▶ reward ─Scored─▶ broker ─Batch─▶ trainer
                       ▲                                                                              │
                       └────────────────────────────────── weights ───────────────────────────────────┘

A small model learns to work out sums, in about a minute on two cores. `asyncrl run conf/quickstart.toml` runs the same
actors as processes, with ZeroMQ in place of `MemoryHub` and a collective in place of `MemoryPublisher`.

    asyncrl toy step-sums cache/step-sums          (once: the model and its data)
    python examples/loop.py
"""

import asyncio
import logging
import sys
from pathlib import Path

import structlog
from msgspec.structs import replace
from transformers import AutoTokenizer

from asyncrl import Connection, RolloutActor, RolloutOptions, load_config
from asyncrl.actor.memory import MemoryHub
from asyncrl.broker.actor import BrokerActor
from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.broker.scheduler import Scheduler
from asyncrl.client.handshake import hello, identity, shake_hands
from asyncrl.client.spools import SpoolLinks
from asyncrl.data.prompts import held_out_stream, train_stream
from asyncrl.messages.spool import SpoolAddress
from asyncrl.messages.words import Role
from asyncrl.node.rollout.engine import load_engine
from asyncrl.node.runner import Actor, serve
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.reward.actor import RewardActor
from asyncrl.reward.workers.pool import WorkerPool
from asyncrl.spool.actor import SpoolActor
from asyncrl.spool.segments import Segments
from asyncrl.trainer.actor import TrainerActor
from asyncrl.trainer.learner import Learner
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.memory import MemoryPublisher, MemoryReceiver


async def main(run_file: Path, *overrides: str) -> Path:
    """Train to the end of the run. Returns the run directory."""
    config = load_config(run_file, overrides)
    directory = RunDirectory.create(Path(config.run.dir), config.run.name or "loop")
    control, payloads = MemoryHub(), MemoryHub()  # the ends that nodes connect to: the broker's, and the spool's

    # Broker: hands out prompts, bounds staleness, writes every decision to the ledger. Spool: stores trajectories.
    ledger, segments = Ledger(directory.ledger), Segments(directory.spool, segment_bytes=config.broker.segment_bytes)
    held_out = [draw.prompt for draw in held_out_stream(config.data, config.evaluation.max_prompts).since(0)]
    scheduler = Scheduler(config, train_stream(config.data, config.run.seed), held_out, ledger.broker_term)
    broker = BrokerActor(
        config, scheduler, control, ledger, directory,
        connect=lambda _: payloads.connect("broker"),
        broker_term=ledger.broker_term, run_id=ledger.run_id,
    )  # fmt: skip

    async def connect(role: Role, spool: SpoolAddress | None = None) -> Connection:
        who = identity(role, role)
        link = control.connect(who.peer)
        welcome = await shake_hands(link, who, lambda who: replace(hello(who), spool=spool))
        return Connection(who, link, SpoolLinks(lambda _: payloads.connect(who.peer), welcome.spools))

    async def play(actor: Actor, connection: Connection) -> None:
        await serve(actor, connection.broker, beat_s=config.broker.beat_s, stopping=asyncio.Event())

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(broker.run())
        connection = await connect("spool", SpoolAddress("spool", payloads.address))
        tasks.create_task(SpoolActor("spool", segments, payloads, connection.broker).run())

        # Rollout: prompts become trajectories. New weights replace the old ones between two decode steps.
        engine, publisher = load_engine(config), MemoryPublisher()
        layout = Layout(engine.specs(), config.weights.bucket_bytes)
        options = RolloutOptions(
            slots=config.rollout.slots, group_size=config.schedule.group_size, layout_hash=layout.hash
        )
        connection = await connect("rollout")
        rollout = RolloutActor(engine, connection, options, receiver=MemoryReceiver(publisher))
        tasks.create_task(play(rollout, connection))

        # Reward: trajectories become numbers, in worker processes that can be killed.
        pool = WorkerPool(config.reward)
        await pool.start()
        connection = await connect("reward")
        tasks.create_task(play(RewardActor(pool=pool, connection=connection), connection))

        # Trainer: batches become new weights.
        learner, tokenizer = Learner(config, Path(config.model.path)), AutoTokenizer.from_pretrained(config.model.path)
        connection = await connect("trainer")
        trainer = TrainerActor(
            config, learner, publisher, connection,
            tokenizer=tokenizer, layout_hash=layout.hash, checkpoints=directory.checkpoints,
            run_id=ledger.run_id,
        )  # fmt: skip
        tasks.create_task(play(trainer, connection))

        await running  # The broker ends the run, and tells every node to stop.
        await pool.aclose()
        await engine.aclose()
        await payloads.aclose()
        ledger.close()
        segments.close()
    return directory.path


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    finished = asyncio.run(main(Path("conf/quickstart.toml"), "run.name=loop", "rollout.replicas=1", *sys.argv[1:]))
    print((finished / "summary.json").read_text())
