"""
The whole loop on one page: five roles as tasks of one process, connected by links in memory.

    broker ─Lease─▶ rollout ─Put─▶ spool ─Stored─▶ broker ─Grade─▶ reward ─Scored─▶ broker ─Batch─▶ trainer
                       ▲                                                                              │
                       └────────────────────────────────── weights ───────────────────────────────────┘

A small model learns to work out sums, in about a minute on two cores. `asyncrl run conf/quickstart.toml` runs the same
actors as processes, with ZeroMQ in place of links in memory and a collective in place of copied weights.

    asyncrl toy step-sums cache/step-sums          (once: the model and its data)
    python examples/loop.py
"""

import asyncio
import logging
import sys
from contextlib import aclosing
from pathlib import Path

import structlog
from transformers import AutoTokenizer

from asyncrl import load_config
from asyncrl.reward.workers.pool import WorkerPool
from asyncrl.runtime.in_memory import MemoryRun
from asyncrl.runtime.rollout import load_engine
from asyncrl.trainer.learner import Learner


async def main(run_file: Path, *overrides: str) -> Path:
    """Train to the end of the run. Returns the run directory."""
    config = load_config(run_file, overrides)
    async with MemoryRun(config, "loop") as run, aclosing(load_engine(config)) as engine:
        # Rollout: prompts become trajectories. New weights replace the old ones between two decode steps.
        await run.roll_out(engine, engine.specs())

        # Reward: trajectories become numbers, in worker processes that can be killed.
        pool = WorkerPool(config.reward)
        await pool.start()
        await run.reward(pool)

        # Trainer: batches become new weights.
        learner, tokenizer = Learner(config, Path(config.model.path)), AutoTokenizer.from_pretrained(config.model.path)
        await run.train(learner, tokenizer)

        await run.finished()
        await pool.aclose()
    return run.directory.path


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    finished = asyncio.run(main(Path("conf/quickstart.toml"), "run.name=loop", "rollout.replicas=1", *sys.argv[1:]))
    print((finished / "summary.json").read_text())
