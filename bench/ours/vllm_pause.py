"""
The same pauses of vLLM, whose worker has received and staged a version by itself: `swap` tells it to take it.

Needs an environment with vLLM; says so if there is none.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from asyncrl.actor.link import Link
from asyncrl.actor.memory import MemoryHub
from asyncrl.config.sections import Config, Data, Model, Rollout, SamplingConfig, Vllm, Weights
from asyncrl.messages import Member, StoreValue, Transfer
from asyncrl.rollout.engine import WeightReceiver
from asyncrl.rollout.engines.vllm import arguments
from asyncrl.rollout.engines.vllm.engine import VllmEngine
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.contents.names import checkpoint_tensors
from asyncrl.weights.publish import Publisher

from . import shapes
from .pause import MAX_TOKENS, PROMPT_TOKENS, REQUESTS, Kv, Pauses, Ready, measure, tokenizer
from .transfers import DEADLINE_S, MEMBERS, serve

KV_BYTES, KV_BLOCK = 512 << 20, 32
"""Room for all requests of the largest model; the least that a CPU's attention takes."""


def of_vllm(size: str, dtype: str, kv: Kv, publishes: int) -> Pauses:
    """vLLM, whose worker has received and staged the version by itself: `swap` tells it to take it."""
    model = shapes.model(size).to(getattr(torch, dtype))
    with TemporaryDirectory(prefix="asyncrl-bench-") as folder, asyncio.Runner() as runner:
        model.save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        with _extended():
            engine = VllmEngine.load(_vllm(Path(folder), dtype, kv))

        async def play() -> Pauses:
            try:
                async with _fed(engine, model, size, dtype) as ready:
                    return await measure(engine, ready, partial(_load_barely, engine, folder), publishes)
            finally:
                await engine.aclose()

        return runner.run(play())


@contextmanager
def _extended() -> Iterator[None]:
    """vLLM's processes find `BareLoad`, which they look for where Python does."""
    name = "worker_extension_cls"
    before, folder = arguments.FIXED[name], str(Path(__file__).parent)
    known = os.environ.get("PYTHONPATH", "")
    arguments.FIXED = {**arguments.FIXED, name: ("bare_load.BareLoad", before[1])}
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, known)))
    sys.path.insert(0, folder)
    yield
    arguments.FIXED = {**arguments.FIXED, name: before}
    os.environ["PYTHONPATH"] = known
    sys.path.remove(folder)


async def _load_barely(engine: VllmEngine, folder: str) -> float:
    path = Path(folder, "bare_load_s")
    await engine._adapter.call_workers("asyncrl_bare_load", str(path))
    return float(path.read_text())  # noqa: ASYNC240  a line, while nothing goes on


def _vllm(path: Path, dtype: Any, kv: Kv) -> Config:
    vllm = Vllm(kv_cache_bytes=KV_BYTES, enforce_eager=True, engine_args={"block_size": KV_BLOCK})
    return Config(
        model=Model(path=str(path), dtype=dtype),
        data=Data(train="prompts.jsonl", max_prompt_tokens=PROMPT_TOKENS),
        sampling=SamplingConfig(max_tokens=MAX_TOKENS),
        rollout=Rollout(engine="vllm", kv=kv, slots=REQUESTS, vllm=vllm),
    )


@asynccontextmanager
async def _fed(engine: VllmEngine, model: Any, size: str, dtype: str) -> AsyncIterator[Ready]:
    """A trainer in this process that sends its weights to the engine's worker."""
    hub, config = MemoryHub(), Weights()
    trainer, node = hub.connect("trainer"), hub.connect("rollout")
    member = Member("rollout", "1", engine.ranks)
    layout = Layout(shapes.specs(size, dtype), config.bucket_bytes)
    publisher = Publisher(layout, MEMBERS[0], trainer.send, config)
    receiver = await engine.receiver(member, node.send, config)
    jobs = [serve(hub, asyncio.Queue()), _deliver(trainer, publisher), _deliver(node, receiver)]
    tasks = [asyncio.create_task(job) for job in jobs]

    async def ready(version: int) -> Mapping[str, Tensor]:
        publisher.stage(version, checkpoint_tensors(model))
        order = Transfer(1, version, [MEMBERS[0], member], True, DEADLINE_S)
        await asyncio.gather(publisher.transfer(order), receiver.transfer(order))
        return receiver.weights()

    try:
        yield ready
    finally:
        await receiver.aclose()
        await publisher.aclose()
        for task in tasks:
            task.cancel()


async def _deliver(link: Link, end: Publisher | WeightReceiver) -> None:
    async for message in link:
        if isinstance(message, StoreValue):
            end.deliver(message)
