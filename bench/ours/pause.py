"""
Time that generation is paused for new weights while requests run.

    endless requests ─▶ engine ◀─ pause, swap, resume               timed repeatedly, with some tokens in between
                                  pause, resume, and a bare load of the same tensors for comparison
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

import torch
from msgspec import Struct
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from asyncrl.engine import Engine, Request
from asyncrl.messages.trajectory import Sampling
from asyncrl.rollout.engines.transformers.engine import TransformersEngine

from . import shapes

Kv = Literal["keep", "recompute"]
Ready = Callable[[int], Awaitable[Mapping[str, Tensor]]]
"""Stages a version while decoding continues, and returns the weights for `Engine.swap`."""
Bare = Callable[[], Awaitable[float]]
"""Loads the tensors of a version directly, and returns the seconds it took."""

REQUESTS, PROMPT_TOKENS, MAX_TOKENS = 4, 32, 256
TOKENS_BETWEEN = 3
"""Average number of tokens per request between two measurements."""
LOOK_S = 0.001


class Pauses(Struct, frozen=True):
    """[publishes] seconds."""

    swap_s: list[float]
    """Time of pause, swap and resume."""
    bare_s: list[float]
    """Pause and resume with nothing between, plus a bare load of the same tensors: a lower bound."""


def measure_transformers(size: str, dtype: str, kv: Kv, publishes: int) -> Pauses:
    """Measure asyncrl's own engine, whose `swap` copies from the staging buffers."""
    model = shapes.model(size).to(getattr(torch, dtype)).requires_grad_(False)
    weights = shapes.weights(model, dtype)

    async def ready(_: int) -> Mapping[str, Tensor]:
        return weights

    async def run() -> Pauses:
        positions = PROMPT_TOKENS + MAX_TOKENS
        engine = TransformersEngine(model, tokenizer(model), slots=REQUESTS, max_tokens_per_slot=positions, kv=kv)
        try:
            return await measure(engine, ready, _bare_copy(weights), publishes)
        finally:
            await engine.aclose()

    return asyncio.run(run())


def tokenizer(model: PreTrainedModel) -> PreTrainedTokenizerFast:
    """A placeholder tokenizer that has every token id of a model; the bench passes ids."""
    words = {f"w{number}": number for number in range(model.get_input_embeddings().weight.shape[0])}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")))


# ── measuring ───────────────────────────────────────────────────────────────────────────────


class _Load:
    """`REQUESTS` concurrent requests, each replaced by a new one when it ends."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._newest: list[Request] = []
        self.tasks = [asyncio.create_task(self._generate(i)) for i in range(REQUESTS)]

    async def _generate(self, seed: int) -> None:
        while True:
            prompt_ids = torch.randint(shapes.SHAPES["1M"][0], (PROMPT_TOKENS,)).tolist()
            request = Request(prompt_ids=prompt_ids, sampling=Sampling(max_tokens=MAX_TOKENS), seed=seed)
            self._newest = [*self._newest[1 - REQUESTS :], request]
            await self._engine.generate(request)

    async def make_progress(self) -> None:
        """Wait until the requests have generated `TOKENS_BETWEEN` more tokens each, on average."""
        before = self._num_tokens()
        while 0 <= self._num_tokens() - before < REQUESTS * TOKENS_BETWEEN:
            for task in self.tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(LOOK_S)

    def _num_tokens(self) -> int:
        written = [self._engine.written(request) for request in self._newest]
        return sum(len(completion.completion_ids) for completion in written if completion)


async def measure(engine: Engine, ready: Ready, bare: Bare, publishes: int) -> Pauses:
    """
    Time ``publishes`` swaps while requests run.

    Args:
        ready: Called before each swap.
        bare: Called after each swap, while the engine is paused.
    """
    load = _Load(engine)
    swap_s, bare_s = [], []
    for version in range(1, publishes + 1):
        await load.make_progress()
        swap_s.append(await _timed(engine, version, await ready(version)))
        await load.make_progress()
        empty_s = await _timed(engine, None, {})
        await engine.pause()
        bare_s.append(empty_s + await bare())
        await engine.resume()
    for task in load.tasks:
        task.cancel()
    await asyncio.gather(*load.tasks, return_exceptions=True)
    return Pauses(swap_s, bare_s)


async def _timed(engine: Engine, version: int | None, weights: Mapping[str, Tensor]) -> float:
    start_s = time.perf_counter()
    await engine.pause()
    if version is not None:
        await engine.swap(version, weights)
    await engine.resume()
    return time.perf_counter() - start_s


def _bare_copy(weights: Mapping[str, Tensor]) -> Bare:
    """A bare load that copies all tensors once."""
    target = {name: tensor.clone() for name, tensor in weights.items()}

    async def copy() -> float:
        start_s = time.perf_counter()
        for name, tensor in target.items():
            tensor.copy_(weights[name])
        return time.perf_counter() - start_s

    return copy
