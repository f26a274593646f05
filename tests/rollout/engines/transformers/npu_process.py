"""
The engine on ``npu:1`` of the fake, beside one on the CPU; prints what each decoded as JSON.

Run it with model directories, each followed by a dtype, in the environment that `fake_npu.installed_at` returns; it
prints a list. The event loop's thread has ``npu:0`` as its current device, as a host's may.
"""

import asyncio
import importlib
import json
import sys
from typing import Any

import torch
from msgspec.structs import replace

from asyncrl.engine import Completion, Request
from asyncrl.messages.trajectory import Sampling
from asyncrl.rollout.engines.transformers.engine import TransformersEngine
from tests.rollout.engines.vision_models import picture_request

PROMPTS = [[5, 9, 7], [5, 9, 7], [3, 4], [8]]
STEPS = 3
"""Steps before the new weights come."""
FILTERS: list[dict[str, Any]] = [{}, {"temperature": 0.5}, {"top_p": 0.8, "top_k": 5}, {"stop": ["zz"]}]


async def decode(engine: TransformersEngine) -> list[Completion]:
    """Decode requests of every kind, with new weights in the middle, sleep, then one that resumes."""
    on_device = engine.device.type != "cpu"
    requests = [
        Request(prompt_ids=prompt, sampling=Sampling(max_tokens=12, **options), seed=seed)
        for seed, (prompt, options) in enumerate(zip(PROMPTS, FILTERS, strict=True))
    ]
    if engine._processor is not None:
        requests.append(picture_request(engine._processor, (24, 16), seed=4))
    running = [asyncio.create_task(engine.generate(request)) for request in requests]
    while engine._table._steps < STEPS and not any(task.done() for task in running):
        await asyncio.sleep(0)
    await engine.pause()
    half, written = next((request, one) for request in requests if (one := engine.written(request)))
    generator = torch.Generator().manual_seed(1)
    new = {spec.name: torch.randn(spec.shape, generator=generator) / 4 for spec in engine.specs()}
    await engine.swap(2, new)
    await engine.resume()
    done = list(await asyncio.gather(*running))
    await engine.pause()
    held = [tensor.untyped_storage() for tensor in (*engine._model.parameters(), engine._table.cache.storage)]
    before, moved = sum(storage.nbytes() for storage in held), await engine.sleep()
    assert (moved > 0, sum(storage.nbytes() for storage in held)) == ((True, 0) if on_device else (False, before))
    await engine.wake()
    await engine.resume()
    return [*done, await engine.generate(replace(half, resume_from=written))]


def ran(model: str, dtype: Any, device: str) -> list[tuple[list[int], list[float], int]]:
    options: dict[str, Any] = {"slots": 4, "max_tokens_per_slot": 32, "policy_version": 1}
    engine = TransformersEngine.load(model, dtype=dtype, device=device, **options)
    assert str(engine.device) == device
    done = asyncio.run(decode(engine))
    return [(one.completion_ids, one.behavior_logprobs, len(one.spans)) for one in done]


def facts(model: str, dtype: str) -> dict[str, Any]:
    """Of one model: what each engine decoded, what strayed meanwhile, and the thread's device afterwards."""
    found = {device: ran(model, dtype, device) for device in ("cpu", "npu:1")}
    torch_npu: Any = importlib.import_module("torch_npu")
    strays = list(torch_npu.STRAYS)
    torch_npu.STRAYS.clear()
    return {"strays": strays, "current": torch_npu.current_device(), **found}


if __name__ == "__main__":
    told = zip(sys.argv[1::2], sys.argv[2::2], strict=True)
    sys.stdout.write(json.dumps([facts(model, dtype) for model, dtype in told]))
