"""
Minimal RL loop of two processes: one samples, one trains, and a queue connects them.

    sampler ── Queue: batches ──▶ trainer
       ▲──── shared memory: weights, Pipe: "batch consumed" ────────┘

Engine, learner, verifier and staleness bound are those of asyncrl. There is no broker, ledger, spool or lease, and no
recovery if a process dies. The additional time of asyncrl's loop is the cost of the runtime.

With ``schedule.staleness`` 0 the processes alternate strictly; with 1 a batch is sampled while the previous one trains.

    PYTHONPATH=bench python -m peers.bare_loop CONFIG

`multiprocessing` pickles messages, which asyncrl never does; here both ends are this file on this machine.
"""

import asyncio
import sys
import time
from multiprocessing.connection import Connection
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Lock
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from timeline import Stopwatch
from torch import Tensor, multiprocessing
from torch.nn.utils import parameters_to_vector
from workload import Weights, Workload

from asyncrl.config.config import Config
from asyncrl.config.run_file import load_config
from asyncrl.engine import Request
from asyncrl.messages.trajectory import Prompt
from asyncrl.rollout.engines.transformers.engine import TransformersEngine
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.packing.step import TrainingTrajectory
from asyncrl.wire.occupancy import Occupancy


class SharedWeights:
    """One version of all weights as a flat tensor in shared memory."""

    def __init__(self, lock: Lock, size: int) -> None:
        self._lock = lock
        self._flat = torch.zeros(size).share_memory_()  # type: ignore[no-untyped-call]

    def write(self, tensors: list[Tensor]) -> None:
        with self._lock, torch.no_grad():
            self._flat.copy_(parameters_to_vector(tensors))

    def read(self, engine: TransformersEngine) -> Weights:
        """A copy of the weights by name."""
        with self._lock:
            flat = self._flat.clone()
        specs = engine.specs()
        parts = flat.split([int(np.prod(spec.shape)) for spec in specs])
        return {spec.name: part.view(spec.shape) for spec, part in zip(specs, parts, strict=True)}


class Sampler:
    """The sampling process, which starts a batch for each consumed one, so that the staleness bound holds."""

    def __init__(self, workload: Workload, shared: SharedWeights, batches: "Queue[Any]", used_up: Connection) -> None:
        self._workload = workload
        self._shared = shared
        self._batches = batches
        self._used_up = used_up
        self._engine = workload.engine()
        self._sampling = workload.config.sampling.sampling()
        self._occupancy = Occupancy(("sampling",))

    async def run(self) -> None:
        """Sample all batches of the run, then send the seconds in which at least one batch was in progress."""
        wanted = asyncio.Semaphore(window(self._workload.config))
        asyncio.get_running_loop().add_reader(self._used_up.fileno(), self._on_used_up, wanted)
        self._batches.put("ready")
        self._version, self._trained = 0, 0
        delivered = asyncio.create_task(self._engine.resume())  # the first batch has no predecessor to wait for
        for step in range(self._workload.config.run.steps):
            await wanted.acquire()
            await self._refresh()
            delivered = asyncio.create_task(self._deliver(step, delivered))
        await delivered
        self._batches.put(self._occupancy.seconds.get("sampling", 0.0))

    def _on_used_up(self, wanted: asyncio.Semaphore) -> None:
        self._trained = self._used_up.recv()
        wanted.release()

    async def _refresh(self) -> None:
        if self._version < self._trained:
            self._version = self._trained
            await self._engine.pause()
            await self._engine.swap(self._version, self._shared.read(self._engine))
            await self._engine.resume()

    async def _deliver(self, step: int, before: "asyncio.Task[None]") -> None:
        """Sample one batch, and send it after the previous batch."""
        self._occupancy.begin("sampling")
        groups = await asyncio.gather(
            *(self._group(step, place, prompt) for place, prompt in enumerate(self._workload.prompts(step)))
        )
        self._occupancy.end("sampling")
        await before
        self._batches.put([trajectory for group in groups for trajectory in group])

    async def _group(self, step: int, place: int, prompt: Prompt) -> list[TrainingTrajectory]:
        schedule, prompt_ids = self._workload.config.schedule, self._engine.encode(prompt)
        group_id = step * schedule.groups_per_step + place
        seeds = range(group_id * schedule.group_size, (group_id + 1) * schedule.group_size)
        requests = [Request(prompt_ids=prompt_ids, sampling=self._sampling, seed=seed) for seed in seeds]
        completions = await asyncio.gather(*map(self._engine.generate, requests))
        return [
            TrainingTrajectory(
                group_id=group_id,
                prompt_ids=np.array(prompt_ids, np.int32),
                completion_ids=np.array(completion.completion_ids, np.int32),
                behavior_logprobs=np.array(completion.behavior_logprobs, np.float32),
                reward=self._workload.reward_of(self._engine, prompt, completion),
            )
            for completion in completions
        ]


def window(config: Config) -> int:
    """Maximum number of open batches: asyncrl's window in whole batches."""
    batches: int = config.schedule.window // config.schedule.groups_per_step
    return batches


def run_sampler(config: Config, shared: SharedWeights, batches: "Queue[Any]", used_up: Connection) -> None:
    """The sampling process."""
    torch.set_num_threads(config.rollout.threads)
    asyncio.run(Sampler(Workload(config), shared, batches, used_up).run())


def main(path: Path) -> None:
    """The training process."""
    config = load_config(path)
    torch.set_num_threads(config.trainer.threads)
    learner = Learner(config, Path(config.model.path))
    weights = dict(learner.named_weights())
    context = multiprocessing.get_context("spawn")
    shared = SharedWeights(context.Lock(), sum(weight.numel() for weight in weights.values()))
    batches: Queue[Any] = context.Queue()
    receiver, sender = context.Pipe(duplex=False)
    sampler = context.Process(target=run_sampler, args=(config, shared, batches, receiver), daemon=True)
    sampler.start()
    batches.get()
    watch = Stopwatch(Workload(config), lambda: {name: weight.clone() for name, weight in weights.items()})
    watch.start()
    busy_s = 0.0
    for step in range(config.run.steps):
        trajectories = batches.get()
        taken_s = time.monotonic()
        learner.train(trajectories)
        shared.write(list(weights.values()))
        sender.send(step + 1)
        busy_s += time.monotonic() - taken_s
        watch.step_done(sum(len(trajectory.completion_ids) for trajectory in trajectories))
    sampled_s = batches.get()
    sampler.join()
    timeline = watch.timeline(trainer_busy_s=busy_s, rollout_busy_s=sampled_s)
    sys.stdout.buffer.write(msgspec.json.encode(timeline) + b"\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
