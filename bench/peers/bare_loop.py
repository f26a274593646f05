"""
The least a loop of two processes can be: one samples, one trains, and nothing is between them but a queue.

    sampler ── Queue: batches ──▶ trainer
       ▲──── shared memory: weights, Pipe: "a batch is used up" ────┘

Engine, learner, judge and staleness bound are asyncrl's own; there is no broker, no ledger, no spool, no lease, and if
one process dies all is lost. What asyncrl's loop needs beyond this is what the runtime costs.

With ``schedule.staleness`` 0 the two alternate strictly; with 1 a batch is sampled while the one before it trains.

    PYTHONPATH=bench python -m peers.bare_loop CONFIG

`multiprocessing` pickles what it sends, which asyncrl never does: both ends are this file, on this machine.
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
from course import Stopwatch
from lesson import Lesson, Weights
from torch import Tensor, multiprocessing
from torch.nn.utils import parameters_to_vector

from asyncrl.actor.occupancy import Occupancy
from asyncrl.config.run_file import load_config
from asyncrl.config.sections import Config
from asyncrl.messages import Prompt
from asyncrl.rollout.engine import Request
from asyncrl.rollout.engines.transformers.engine import TransformersEngine
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.packing.batch import TrainingTrajectory


class SharedWeights:
    """One version of all weights, flat, in memory both processes see."""

    def __init__(self, lock: Lock, size: int) -> None:
        self._lock = lock
        self._flat = torch.zeros(size).share_memory_()  # type: ignore[no-untyped-call]

    def write(self, tensors: list[Tensor]) -> None:
        with self._lock, torch.no_grad():
            self._flat.copy_(parameters_to_vector(tensors))

    def read(self, engine: TransformersEngine) -> Weights:
        """A copy, by name."""
        with self._lock:
            flat = self._flat.clone()
        specs = engine.specs()
        parts = flat.split([int(np.prod(spec.shape)) for spec in specs])
        return {spec.name: part.view(spec.shape) for spec, part in zip(specs, parts, strict=True)}


class Sampler:
    """The sampling process: begins a batch for each one used up, so that the staleness bound holds."""

    def __init__(self, lesson: Lesson, shared: SharedWeights, batches: "Queue[Any]", used_up: Connection) -> None:
        self._lesson = lesson
        self._shared = shared
        self._batches = batches
        self._used_up = used_up
        self._engine = lesson.engine()
        self._sampling = lesson.config.sampling.sampling()
        self._occupancy = Occupancy()

    async def run(self) -> None:
        """All batches of the run; at last, the seconds it had one in hand."""
        wanted = asyncio.Semaphore(window(self._lesson.config))
        asyncio.get_running_loop().add_reader(self._used_up.fileno(), self._on_used_up, wanted)
        self._batches.put("ready")
        self._version, self._trained = 0, 0
        delivered = asyncio.create_task(self._engine.resume())  # nothing comes before the first batch
        for step in range(self._lesson.config.run.steps):
            await wanted.acquire()
            await self._refresh()
            delivered = asyncio.create_task(self._deliver(step, delivered))
        await delivered
        self._batches.put(self._occupancy.busy_s)

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
        """Sample one batch, and hand it over after the one before it."""
        self._occupancy.begin()
        groups = await asyncio.gather(
            *(self._group(step, place, prompt) for place, prompt in enumerate(self._lesson.prompts(step)))
        )
        self._occupancy.end()
        await before
        self._batches.put([sample for group in groups for sample in group])

    async def _group(self, step: int, place: int, prompt: Prompt) -> list[TrainingTrajectory]:
        schedule, prompt_ids = self._lesson.config.schedule, self._engine.encode(prompt)
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
                reward=self._lesson.reward(prompt, self._engine.decode(completion.completion_ids)),
            )
            for completion in completions
        ]


def window(config: Config) -> int:
    """Batches that may be open at once: the same bound as asyncrl's, in whole batches."""
    batches: int = config.schedule.window // config.schedule.groups_per_step
    return batches


def sample(config: Config, shared: SharedWeights, batches: "Queue[Any]", used_up: Connection) -> None:
    """The sampling process."""
    torch.set_num_threads(config.rollout.threads)
    asyncio.run(Sampler(Lesson(config), shared, batches, used_up).run())


def main(path: Path) -> None:
    """The training process."""
    config = load_config(path)
    torch.set_num_threads(config.trainer.threads)
    learner = Learner(config, Path(config.model.path))
    weights = dict(learner.named_weights())
    context = multiprocessing.get_context("spawn")
    shared = SharedWeights(context.Lock(), sum(weight.numel() for weight in weights.values()))
    batches: Queue[Any] = context.Queue()
    hears, says = context.Pipe(duplex=False)
    sampler = context.Process(target=sample, args=(config, shared, batches, hears), daemon=True)
    sampler.start()
    batches.get()
    watch = Stopwatch(Lesson(config), lambda: {name: weight.clone() for name, weight in weights.items()})
    watch.start()
    busy_s = 0.0
    for step in range(config.run.steps):
        samples = batches.get()
        taken_s = time.monotonic()
        learner.train(samples)
        shared.write(list(weights.values()))
        says.send(step + 1)
        busy_s += time.monotonic() - taken_s
        watch.step_done(sum(len(sample.completion_ids) for sample in samples))
    sampled_s = batches.get()
    sampler.join()
    course = watch.course(trainer_busy_s=busy_s, rollout_busy_s=sampled_s)
    sys.stdout.buffer.write(msgspec.json.encode(course) + b"\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
