"""
A web service whose engine also samples for a training run.

    uvicorn --app-dir examples --factory "host_fastapi:app"         with BROKER=tcp://127.0.0.1:5570, MODEL=directory

The service answers its own requests with the engine that `attach` uses for rollouts. Any engine with the methods of
`asyncrl.Engine` will do; for a vLLM that already runs, use `VllmEngine(async_llm, tokenizer, model_path=...)`.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

import asyncrl
from asyncrl.messages import Prompt, Sampling
from asyncrl.rollout.engines.transformers.engine import TransformersEngine

SLOTS = 8
"""Completions that the engine decodes together."""


def app() -> FastAPI:
    """The service. Its engine joins the run at startup and leaves it at shutdown."""
    engine = TransformersEngine.load(os.environ["MODEL"], slots=SLOTS, max_tokens_per_slot=256)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        rollout = asyncio.create_task(asyncrl.attach(engine, os.environ["BROKER"], "host", slots=SLOTS))
        yield
        rollout.cancel()  # Unfinished trajectories are sampled by other rollouts.
        await asyncio.wait([rollout])
        await engine.aclose()

    service = FastAPI(lifespan=lifespan)

    @service.get("/complete")
    async def complete(text: str) -> dict[str, str]:
        request = asyncrl.Request(
            prompt_ids=engine.encode(Prompt(text=text)), sampling=Sampling(max_tokens=64, temperature=0.0), seed=0
        )
        completion = await engine.generate(request)
        return {"completion": engine.decode(completion.completion_ids)}

    return service
