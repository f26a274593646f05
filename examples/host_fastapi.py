"""
A web service whose engine also samples for a training run, in the time that its users leave.

    uvicorn --app-dir examples --factory "host_fastapi:app"         with BROKER=tcp://127.0.0.1:5570, MODEL=directory

The service answers its own requests with the engine that `attach` uses for rollouts, and users go first. Any engine
with the methods of `asyncrl.Engine` will do; for a vLLM that already runs with ``scheduling_policy="priority"``, use
`VllmEngine(async_llm, tokenizer, model_path=...)`.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from fastapi import FastAPI

import asyncrl
from asyncrl import Prompt, Sampling, TransformersEngine

SLOTS = 8
"""Completions that the engine decodes together."""


def app() -> FastAPI:
    """The service. Its engine joins the run at startup and leaves it at shutdown."""
    host = asyncrl.Host()
    engine = TransformersEngine.load(os.environ["MODEL"], slots=SLOTS, max_tokens_per_slot=256, prefill_tokens=256)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        rollout = asyncio.create_task(asyncrl.attach(engine, os.environ["BROKER"], "host", slots=SLOTS, host=host))
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
        with host.user_request():
            completion = await engine.generate(request)
        return {"completion": engine.decode(completion.completion_ids)}

    @service.get("/health")
    async def health() -> dict[str, Any]:
        """The users' service is well whatever the rollout's state."""
        return {"status": "ok", "rollout": msgspec.to_builtins(host.health)}

    return service
