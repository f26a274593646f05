"""Batches for a training loop that is not asyncrl's: handed over one at a time, and released when the loop ends."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from transformers import AutoModelForCausalLM

import asyncrl
from asyncrl.config.run_file import load_config
from asyncrl.errors import LinkReset
from asyncrl.messages.token_ids import TokenIds
from asyncrl.messages.trajectory import Span
from asyncrl.runtime.batches import BatchStream
from asyncrl.trainer.packing.step import TrainingStep, TrainingTrajectory, local_step

STEPS = [
    local_step(
        TrainingTrajectory(
            group_id=step,
            prompt_ids=np.array([3], np.int32),
            completion_ids=np.array([4, 5], np.int32),
            behavior_logprobs=np.zeros(2, np.float32),
            reward=reward,
        )
        for reward in (0.0, 1.0)
    )
    for step in range(2)
]


def make_stream(toy: Path, first_step: int = 0, **schedule: Any) -> BatchStream:
    model, config = AutoModelForCausalLM.from_pretrained(toy / "model"), load_config(toy / "toy.toml")
    config = structs.replace(config, schedule=structs.replace(config.schedule, **schedule))
    return BatchStream(config, model, TokenIds(22), first_step=first_step)


@asynccontextmanager
async def compute_thread() -> AsyncIterator[ThreadPoolExecutor]:
    """A thread as the trainer's actor has, ended without blocking the loop."""
    executor = ThreadPoolExecutor(1)
    yield executor
    await asyncio.to_thread(executor.shutdown)


def test_a_step_ends_with_the_body_of_the_loop_and_reports_its_metrics(toy: Path) -> None:
    async def main() -> tuple[list[tuple[int, int]], list[dict[str, float]]]:
        stream, loop = make_stream(toy, first_step=7), asyncio.get_running_loop()
        seen: list[tuple[int, int]] = []
        async with compute_thread() as thread:

            async def trainer() -> list[dict[str, float]]:
                return [await loop.run_in_executor(thread, stream.train, step, None) for step in STEPS]

            training = asyncio.create_task(trainer())
            async for batch in stream:
                seen.append((batch.step, len(batch.trajectories)))
                batch.metrics["loss"] = float(batch.step)
                if len(seen) == len(STEPS):
                    asyncio.create_task(asyncio.sleep(0)).add_done_callback(stream.end)
            return seen, await training

    seen, metrics = asyncio.run(main())
    assert seen == [(7, 2), (8, 2)]
    assert metrics == [{"num_tokens": 4.0, "reward": 0.5, "loss": 7.0}, {"num_tokens": 4.0, "reward": 0.5, "loss": 8.0}]


def test_the_loop_gets_tokens_that_are_too_old_as_context(toy: Path) -> None:
    whole = STEPS[0].trajectories[0]
    step = local_step([replace(whole, spans=[Span(6, 0, 1), Span(7, 1, 2)])])

    async def main() -> tuple[TrainingTrajectory, dict[str, float]]:
        stream = make_stream(toy, first_step=7, steps_per_publish=1, max_staleness=0, on_straggler="mask")
        async with compute_thread() as thread:
            training = asyncio.get_running_loop().run_in_executor(thread, stream.train, step, None)
            async for batch in stream:
                seen = batch.trajectories[0]
                asyncio.create_task(asyncio.sleep(0)).add_done_callback(stream.end)
            return seen, await training

    seen, metrics = asyncio.run(main())
    assert (seen.context_ids.tolist(), seen.completion_ids.tolist()) == ([4], [5])
    assert metrics["num_tokens"] == 2, "the policy wrote both"


def test_abandoning_the_stream_releases_the_compute_thread(toy: Path) -> None:
    async def main() -> dict[str, float]:
        stream, loop = make_stream(toy), asyncio.get_running_loop()
        async with compute_thread() as thread:
            training = asyncio.ensure_future(loop.run_in_executor(thread, stream.train, STEPS[0], None))
            async for _ in stream:
                break
            stream.abandon()
            return await training

    assert asyncio.run(main())["num_tokens"] == 4.0


def test_the_error_that_ended_the_trainer_is_raised_by_the_loop(toy: Path) -> None:
    async def failing() -> None:
        raise LinkReset("the broker restarted")

    async def main() -> None:
        stream = make_stream(toy)
        task = asyncio.create_task(failing())
        task.add_done_callback(stream.end)
        async for _ in stream:
            pass

    with pytest.raises(LinkReset, match="the broker restarted"):
        asyncio.run(main())


def test_a_snapshot_holds_the_weights_and_what_ends_completions_and_publishes_them_by_name(toy: Path) -> None:
    async def main() -> BatchStream:
        return make_stream(toy)

    stream = asyncio.run(main())
    snapshot, published = stream.snapshot(toy), dict(stream.named_weights())
    assert {type(config).__name__ for config in snapshot.configs} == {"Qwen3Config", "GenerationConfig"}
    assert published.keys() <= snapshot.weights.keys()
    assert all((snapshot.weights[name] == tensor).all() for name, tensor in published.items())


def test_every_trajectory_is_trained_by_this_process(toy: Path) -> None:
    async def main() -> list[int]:
        step: TrainingStep = STEPS[0]
        return make_stream(toy).assign_ranks(step.infos)

    assert asyncio.run(main()) == [0, 0]


def test_batches_that_nobody_has_joined_say_how() -> None:
    async def loop() -> None:
        async for _ in asyncrl.batches("tcp://127.0.0.1:1", None, None):
            pass

    with pytest.raises(TypeError, match=r"write `async with asyncrl\.batches\(\.\.\.\) as stream:`"):
        asyncio.run(loop())
