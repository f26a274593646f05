"""
Pauses of vLLM for new weights, as in `ours.pause`. Needs an environment with vLLM.
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

from asyncrl.config.config import Config
from asyncrl.config.sections.data import Data
from asyncrl.config.sections.rollout import Rollout, Vllm
from asyncrl.config.sections.run import Model
from asyncrl.config.sections.sampling import SamplingConfig
from asyncrl.config.sections.weights import Weights
from asyncrl.engine import WeightReceiver
from asyncrl.messages.session import StoreValue
from asyncrl.messages.weights import Member, Transfer
from asyncrl.rollout.engines.vllm import arguments
from asyncrl.rollout.engines.vllm.engine import VllmEngine
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.contents.names import checkpoint_tensors
from asyncrl.weights.publish import Publisher
from asyncrl.wire.addresses import LOOPBACK
from asyncrl.wire.link import Link
from asyncrl.wire.memory import MemoryHub

from . import shapes
from .pause import MAX_TOKENS, PROMPT_TOKENS, REQUESTS, Kv, Pauses, Ready, measure, tokenizer
from .transfers import DEADLINE_S, MEMBERS, serve

KV_BYTES, KV_BLOCK = 512 << 20, 32
"""KV cache for all requests of the largest model; smallest block size of vLLM's CPU attention."""


def measure_vllm(size: str, dtype: str, kv: Kv, publishes: int) -> Pauses:
    """Measure vLLM, whose worker receives and stages a version; `swap` tells the worker to load it."""
    model = shapes.model(size).to(getattr(torch, dtype))
    with TemporaryDirectory(prefix="asyncrl-bench-") as folder, asyncio.Runner() as runner:
        model.save_pretrained(folder)
        tokenizer(model).save_pretrained(folder)
        with _bench_worker_extension():
            engine = VllmEngine.load(_vllm(Path(folder), dtype, kv))

        async def run() -> Pauses:
            try:
                async with _weight_source(engine, model, size, dtype) as ready:
                    return await measure(engine, ready, partial(_bare_load, engine, folder), publishes)
            finally:
                await engine.aclose()

        return runner.run(run())


@contextmanager
def _bench_worker_extension() -> Iterator[None]:
    """Configure vLLM to use `BareLoad`, and add its folder to the import path of vLLM's processes."""
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


async def _bare_load(engine: VllmEngine, folder: str) -> float:
    path = Path(folder, "bare_load_s")
    await engine._adapter.call_workers("asyncrl_bare_load", str(path))
    return float(path.read_text())  # noqa: ASYNC240  one line, while the engine is paused


def _vllm(path: Path, dtype: Any, kv: Kv) -> Config:
    vllm = Vllm(kv_cache_bytes=KV_BYTES, enforce_eager=True, engine_args={"block_size": KV_BLOCK})
    return Config(
        model=Model(path=str(path), dtype=dtype),
        data=Data(train="prompts.jsonl", max_prompt_tokens=PROMPT_TOKENS),
        sampling=SamplingConfig(max_tokens=MAX_TOKENS),
        rollout=Rollout(engine="vllm", kv=kv, slots=REQUESTS, vllm=vllm),
    )


@asynccontextmanager
async def _weight_source(engine: VllmEngine, model: Any, size: str, dtype: str) -> AsyncIterator[Ready]:
    """A function that sends the trainer's weights from this process to the engine's worker."""
    hub, config = MemoryHub(), Weights()
    trainer, node = hub.connect("trainer"), hub.connect("rollout")
    member = Member("rollout", "1", engine.ranks)
    layout = Layout(shapes.specs(size, dtype), config.bucket_bytes)
    publisher = Publisher(layout, MEMBERS[0], trainer.send, config)
    receiver = await engine.receiver(member, node.send, config, interface=LOOPBACK)
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
