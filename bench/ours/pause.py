"""
How long generation stands still for new weights, with requests running.

    requests that never run out ─▶ engine ◀─ pause, swap, resume      timed, again and again, until some tokens more
                                             pause, resume; and a bare load of as many tensors beside it
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

import torch
from msgspec import Struct
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from asyncrl.messages import Sampling
from asyncrl.rollout.engine import Engine, Request
from asyncrl.rollout.engines.transformers.engine import TransformersEngine

from . import shapes

Kv = Literal["keep", "recompute"]
Ready = Callable[[int], Awaitable[Mapping[str, Tensor]]]
"""Brings a version as far as it comes while decoding goes on; what `Engine.swap` then takes."""
Bare = Callable[[], Awaitable[float]]
"""Loads the tensors of a version with nothing around it; the seconds that takes."""

REQUESTS, PROMPT_TOKENS, MAX_TOKENS = 4, 32, 256
TOKENS_BETWEEN = 3
"""That a request gets at least between two publishes."""
LOOK_S = 0.001


class Pauses(Struct, frozen=True):
    """Seconds, one each a publish."""

    swap_s: list[float]
    """Pause, swap, resume."""
    bare_s: list[float]
    """Pause and resume with nothing between, and a bare load of as many tensors: the least there is to do."""


def of_transformers(size: str, dtype: str, kv: Kv, publishes: int) -> Pauses:
    """The engine that comes with asyncrl: `swap` copies out of the staging buffers."""
    model = shapes.model(size).to(getattr(torch, dtype)).requires_grad_(False)
    weights = shapes.weights(model, dtype)

    async def ready(_: int) -> Mapping[str, Tensor]:
        return weights

    async def play() -> Pauses:
        positions = PROMPT_TOKENS + MAX_TOKENS
        engine = TransformersEngine(model, tokenizer(), slots=REQUESTS, max_tokens_per_slot=positions, kv=kv)
        try:
            return await measure(engine, ready, _copying(weights), publishes)
        finally:
            await engine.aclose()

    return asyncio.run(play())


def tokenizer() -> PreTrainedTokenizerFast:
    """Nobody asks it for words."""
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0}, unk_token="<pad>")))


# ── measuring ───────────────────────────────────────────────────────────────────────────────


class _Load:
    """Requests that never run out."""

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

    async def goes_on(self) -> None:
        """Return when the requests have got some tokens more."""
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
    Swap ``publishes`` times.

    Args:
        ready: Called before each.
        bare: Called after each, while nothing decodes.
    """
    load = _Load(engine)
    swap_s, bare_s = [], []
    for version in range(1, publishes + 1):
        await load.goes_on()
        swap_s.append(await _timed(engine, version, await ready(version)))
        await load.goes_on()
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


def _copying(weights: Mapping[str, Tensor]) -> Bare:
    """One pass over all tensors."""
    target = {name: tensor.clone() for name, tensor in weights.items()}

    async def copy() -> float:
        start_s = time.perf_counter()
        for name, tensor in target.items():
            tensor.copy_(weights[name])
        return time.perf_counter() - start_s

    return copy
