"""Requests with pictures through vLLM, against transformers' own full forward pass. Needs torchvision beside vLLM."""

import asyncio
import warnings
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import save_file
from transformers import PreTrainedModel

pytest.importorskip("vllm")
pytest.importorskip("torchvision", reason="vLLM reads no pictures without torchvision")

from asyncrl.config.config import Config
from asyncrl.config.sections.data import Data
from asyncrl.config.sections.rollout import Rollout, Vllm
from asyncrl.config.sections.run import Model
from asyncrl.config.sections.sampling import SamplingConfig
from asyncrl.engine import Completion, Request
from asyncrl.messages.trajectory import Span
from asyncrl.rollout.engines import limits
from asyncrl.rollout.engines.vllm import arguments
from asyncrl.rollout.engines.vllm.engine import VllmEngine
from asyncrl.vision.processor import ImageProcessor
from asyncrl.weights.contents.names import checkpoint_tensors
from tests.conftest import make_vision_model
from tests.rollout.engines.vision_models import full_logprobs, load, picture_request

pytestmark = [pytest.mark.slow("vLLM starts"), pytest.mark.filterwarnings("ignore")]

SIZES = [(24, 16), (48, 8), (300, 200)]
Generate = Callable[..., list[Completion]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("model")
    make_vision_model(found, head_dim=32)
    return found


def new_weights(path: Path) -> tuple[PreTrainedModel, dict[str, torch.Tensor]]:
    """Version 1: every part of the model is another, the vision tower most."""
    model, _ = load(path)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(1.5 if ".visual." in name else 1.1)
    return model, {name: part.clone() for name, part in checkpoint_tensors(model)}


@pytest.fixture(scope="module")
def processor(path: Path) -> ImageProcessor:
    return load(path)[1]


@pytest.fixture(scope="module")
def engine_and_run(path: Path) -> Iterator[tuple[VllmEngine, Callable[[Coroutine[Any, Any, Any]], Any]]]:
    config = Config(
        model=Model(path=str(path), dtype="float32"),
        data=Data(train="prompts.jsonl", max_prompt_tokens=160),
        sampling=SamplingConfig(max_tokens=40),
        rollout=Rollout(
            engine="vllm",
            slots=8,
            vllm=Vllm(kv_cache_bytes=32 << 20, enforce_eager=True, engine_args={"block_size": 32}),
        ),
    )
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(), asyncio.Runner() as runner:
        warnings.simplefilter("ignore")  # vLLM's own
        patch.syspath_prepend(Path(__file__).parent)  # vLLM's processes inherit the path
        _, why = arguments.FIXED["worker_extension_cls"]
        patch.setitem(arguments.FIXED, "worker_extension_cls", ("file_weights.FromFiles", why))
        engine = VllmEngine.load(config)
        yield engine, runner.run
        runner.run(engine.aclose())


@pytest.fixture
def generate(engine_and_run: Any) -> Generate:
    engine, run = engine_and_run

    async def all_at_once(requests: tuple[Request, ...]) -> list[Completion]:
        return await asyncio.gather(*map(engine.generate, requests))

    return lambda *requests: run(all_at_once(requests))


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7}, {"temperature": 0.0}], ids=str)
def test_behavior_logprobs_are_those_of_the_full_forward_pass(
    path: Path, processor: ImageProcessor, generate: Generate, sampling: dict[str, Any]
) -> None:
    requests = [picture_request(processor, *SIZES[: n % 4], seed=n, max_tokens=30, **sampling) for n in range(8)]
    model, _ = load(path)

    for request, completion in zip(requests, generate(*requests), strict=True):
        expected = full_logprobs(path, model, request, completion.completion_ids)
        assert completion.behavior_logprobs == pytest.approx(expected, abs=2e-5)
        assert completion.grids == processor.pixels(request.images).grids
        assert completion.processor == processor.version


def test_the_tokens_of_pictures_are_never_sampled(processor: ImageProcessor, generate: Generate) -> None:
    requests = [picture_request(processor, seed=seed, max_tokens=40, temperature=2.0) for seed in range(8)]
    sampled = {token for completion in generate(*requests) for token in completion.completion_ids}
    assert not sampled & processor.vision_token_ids


def test_a_request_resumes_behind_its_pictures(path: Path, processor: ImageProcessor, generate: Generate) -> None:
    whole = picture_request(processor, (40, 24), max_tokens=16)
    part = Completion(
        completion_ids=[5, 6],
        behavior_logprobs=[-1.0, -1.0],
        spans=[Span(0, 0, 2)],
        finish_reason="unfinished",
        generate_s=0.0,
    )
    (resumed,) = generate(replace(whole, resume_from=part))
    expected = full_logprobs(path, load(path)[0], whole, resumed.completion_ids)
    assert resumed.behavior_logprobs[2:] == pytest.approx(expected[2:], abs=2e-5)


def test_after_new_weights_pictures_are_seen_through_them(
    path: Path, processor: ImageProcessor, engine_and_run: Any, generate: Generate
) -> None:
    engine, run = engine_and_run
    request = picture_request(processor, (24, 16), max_tokens=8)
    model, weights = new_weights(path)
    save_file(weights, path / "v1.safetensors")

    async def publish() -> None:
        await engine.pause()
        await engine.swap(1, {})
        await engine.resume()

    generate(request)
    run(publish())
    (completion,) = generate(request)

    expected = full_logprobs(path, model, request, completion.completion_ids)
    assert completion.behavior_logprobs == pytest.approx(expected, abs=2e-5)
    assert completion.spans == [Span(1, 0, len(completion.completion_ids))]


def test_a_request_whose_pictures_are_being_read_meets_new_weights_whole(
    path: Path, processor: ImageProcessor, engine_and_run: Any
) -> None:
    engine, run = engine_and_run
    request = picture_request(processor, (300, 200), first=50, max_tokens=8)
    model, weights = new_weights(path)
    save_file(weights, path / "v2.safetensors")

    async def swapped() -> Completion:
        task = asyncio.create_task(engine.generate(request))
        while not engine._requests:
            await asyncio.sleep(0)
        await engine.pause()
        await engine.swap(2, {})
        await engine.resume()
        return await task

    completion = run(swapped())
    expected = full_logprobs(path, model, request, completion.completion_ids)
    after = [place for span in completion.spans if span.policy_version == 2 for place in range(span.start, span.end)]
    ours = [completion.behavior_logprobs[place] for place in after]
    assert ours == pytest.approx([expected[place] for place in after], abs=2e-5)
    assert len(after) == len(completion.completion_ids)


def test_specs_are_those_of_the_loaded_model(path: Path, engine_and_run: Any) -> None:
    engine, _ = engine_and_run
    assert engine.specs() == limits.specs(load(path)[0])
