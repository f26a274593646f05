"""Requests with pictures through the built-in engine, against transformers' own full forward pass."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors import safe_open

from asyncrl.engine import Completion, Request
from asyncrl.errors import ConfigError, EngineError
from asyncrl.messages.trajectory import Image, Prompt, Sampling, Span
from asyncrl.rollout.engines.transformers.engine import PictureForward, TransformersEngine
from asyncrl.rollout.engines.transformers.qwen3 import Qwen3VLForward
from asyncrl.vision.processor import ImageProcessor
from asyncrl.weights.contents.names import checkpoint_tensors
from tests.conftest import BEYOND_TOKENIZER, draw_picture, make_model, make_vision_model
from tests.rollout.engines.vision_models import FAMILIES, full_logprobs, load, picture_request
from tests.weights.groups.fake_npu import installed_at

ROOT = Path(__file__).parents[4]
SIZES = [(24, 16), (48, 8), (40, 40)]


@pytest.fixture(scope="module", params=FAMILIES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp(request.param)
    make_vision_model(found, request.param)
    return found


@pytest.fixture
def processor(path: Path) -> ImageProcessor:
    return load(path)[1]


def make_engine(path: Path, **options: Any) -> TransformersEngine:
    return TransformersEngine.load(str(path), **{"slots": 4, "max_tokens_per_slot": 128} | options)


def run(engine: TransformersEngine, *requests: Request) -> list[Completion]:
    async def all_at_once() -> list[Completion]:
        return await asyncio.gather(*map(engine.generate, requests))

    return asyncio.run(all_at_once())


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7}, {"temperature": 0.0}], ids=str)
def test_behavior_logprobs_are_those_of_the_full_forward_pass(path: Path, processor: ImageProcessor, sampling) -> None:
    requests = [picture_request(processor, *SIZES[: n % 4], seed=n, max_tokens=30, **sampling) for n in range(8)]
    model, _ = load(path)

    for request, completion in zip(requests, run(make_engine(path), *requests), strict=True):
        expected = full_logprobs(path, model, request, completion.completion_ids)
        assert completion.behavior_logprobs == pytest.approx(expected, abs=2e-5)


def test_the_fast_forward_serves_qwen3_vl_and_the_models_own_the_rest(path: Path) -> None:
    kind = type(make_engine(path)._table._forward)
    assert kind is (Qwen3VLForward if path.name.startswith("qwen3_vl") else PictureForward)


def test_a_bfloat16_model_reads_pictures(path: Path, processor: ImageProcessor) -> None:
    request = picture_request(processor, (24, 16), (8, 8), max_tokens=8)
    (rounded,) = run(make_engine(path, dtype="bfloat16"), request)
    exact = full_logprobs(path, load(path)[0], request, rounded.completion_ids)
    assert rounded.behavior_logprobs == pytest.approx(exact, abs=0.5)


def test_samples_depend_on_the_pixels(path: Path, processor: ImageProcessor) -> None:
    one, other = (picture_request(processor, (24, 16), first=first, max_tokens=20) for first in (0, 1))
    assert one.prompt_ids == other.prompt_ids
    first, second = run(make_engine(path), one, other)
    assert first.behavior_logprobs != second.behavior_logprobs


def test_grids_are_those_of_the_pictures(path: Path, processor: ImageProcessor) -> None:
    with_two, without = run(
        make_engine(path), picture_request(processor, (24, 16), (8, 40)), picture_request(processor)
    )
    assert with_two.grids == [(1, 4, 6), (1, 10, 2)]
    assert without.grids == []
    assert [with_two.processor, without.processor] == [processor.version, ""]


def test_tokens_of_pictures_and_ids_without_a_text_are_never_sampled(path: Path, processor: ImageProcessor) -> None:
    requests = [picture_request(processor, seed=seed, max_tokens=60, temperature=50.0) for seed in range(8)]
    sampled = {token for completion in run(make_engine(path), *requests) for token in completion.completion_ids}
    assert len(sampled) > 20
    assert not sampled & processor.vision_token_ids.union(BEYOND_TOKENIZER)


def test_a_group_encodes_its_pictures_once_per_policy_version(path: Path, processor: ImageProcessor) -> None:
    engine = make_engine(path)
    group = [picture_request(processor, (24, 16), (8, 8), seed=seed) for seed in range(9)]
    run(engine, *group)
    run(engine, *group)
    assert engine._tower is not None
    assert engine._tower.num_encoded == 2


def test_a_resumed_completion_equals_the_uninterrupted_one(path: Path, processor: ImageProcessor) -> None:
    whole = picture_request(processor, (40, 24), max_tokens=16)
    (expected,) = run(make_engine(path), whole)
    cut = min(5, len(expected.completion_ids) - 1)
    part = replace(
        expected,
        completion_ids=expected.completion_ids[:cut],
        behavior_logprobs=expected.behavior_logprobs[:cut],
        spans=[Span(policy_version=0, start=0, end=cut)],
        finish_reason="unfinished",
    )
    (resumed,) = run(make_engine(path), replace(whole, resume_from=part))
    assert resumed.completion_ids == expected.completion_ids
    assert resumed.behavior_logprobs == pytest.approx(expected.behavior_logprobs, abs=2e-5)


def test_completions_that_move_to_another_slot_keep_their_positions(path: Path, processor: ImageProcessor) -> None:
    lengths = enumerate([1, 3, 25, 30])
    requests = [picture_request(processor, *SIZES[:n], seed=n, max_tokens=most) for n, most in lengths]
    model, _ = load(path)
    for request, completion in zip(requests, run(make_engine(path, slots=3), *requests), strict=True):
        expected = full_logprobs(path, model, request, completion.completion_ids)
        assert completion.behavior_logprobs == pytest.approx(expected, abs=2e-5)


def test_after_new_weights_pictures_are_seen_through_them(path: Path, processor: ImageProcessor) -> None:
    engine, (model, _) = make_engine(path), load(path)
    request = picture_request(processor, (24, 16), max_tokens=8)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".visual." in name:
                parameter.mul_(1.5)
    new = {name: part.clone() for name, part in checkpoint_tensors(model)}
    assert {spec.name for spec in engine.specs()} == new.keys()

    async def swapped() -> Completion:
        await engine.generate(request)
        await engine.pause()
        await engine.swap(1, new)
        await engine.resume()
        return await engine.generate(request)

    completion = asyncio.run(swapped())
    expected = full_logprobs(path, model, request, completion.completion_ids)
    assert completion.behavior_logprobs == pytest.approx(expected, abs=2e-5)
    assert engine._tower is not None
    assert engine._tower.num_encoded == 2


def test_running_completions_with_pictures_are_recomputed_under_new_weights(
    path: Path, processor: ImageProcessor
) -> None:
    engine, (model, _) = make_engine(path), load(path)
    requests = [picture_request(processor, (24, 16), seed=seed, max_tokens=40) for seed in range(3)]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    new = {name: part.clone() for name, part in checkpoint_tensors(model)}

    async def swapped() -> list[Completion]:
        tasks = [asyncio.create_task(engine.generate(request)) for request in requests]
        while engine._table._steps < 2:
            await asyncio.sleep(0)
        await engine.pause()
        await engine.swap(1, new)
        await engine.resume()
        return await asyncio.gather(*tasks)

    for request, completion in zip(requests, asyncio.run(swapped()), strict=True):
        expected = full_logprobs(path, model, request, completion.completion_ids)
        for span in (span for span in completion.spans if span.policy_version == 1):
            ours = completion.behavior_logprobs[span.start : span.end]
            assert ours == pytest.approx(expected[span.start : span.end], abs=2e-5)
    assert engine._tower is not None
    assert engine._tower.num_encoded == 2


def test_a_prompt_is_encoded_with_all_tokens_of_its_pictures(path: Path, processor: ImageProcessor) -> None:
    engine = make_engine(path)
    image = Image(digest=bytes(32), width=24, height=16, num_bytes=1)
    ids = engine.encode(Prompt(chat=[{"role": "user", "content": "a <image> How many"}], images=[image]))
    assert ids.count(processor.image_token_id) == 6


@pytest.mark.parametrize(
    ("images", "reason"),
    [
        ((b"hello",), "picture 1 of 1: a picture of 5 bytes cannot be read"),
        ((), "have 0 tokens by their files, but the prompt has 6"),
        ((draw_picture(8, 8),), "have 1 tokens by their files, but the prompt has 6"),
        ((draw_picture(24, 16), draw_picture(8, 8)), "have 7 tokens by their files, but the prompt has 6"),
    ],
    ids=["damaged", "missing", "of another size", "one too many"],
)
def test_pictures_that_do_not_fit_the_prompt_are_refused_for_good(
    path: Path, processor: ImageProcessor, images: tuple[bytes, ...], reason: str
) -> None:
    request = replace(picture_request(processor, (24, 16)), images=images)
    with pytest.raises(EngineError, match=reason) as caught:
        run(make_engine(path), request)
    assert not caught.value.retryable


def test_a_prompt_that_ends_with_a_picture_is_refused(path: Path, processor: ImageProcessor) -> None:
    request = picture_request(processor, (24, 16))
    cut = replace(request, prompt_ids=request.prompt_ids[:-4])
    with pytest.raises(EngineError, match="a prompt ends with a picture"):
        run(make_engine(path), cut)


def test_a_model_without_its_picture_settings_is_a_config_error(tmp_path: Path) -> None:
    make_vision_model(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(ConfigError, match="neither preprocessor_config"):
        make_engine(tmp_path)


def test_a_model_that_reads_no_pictures_refuses_them(tmp_path: Path) -> None:
    make_model(tmp_path)
    request = Request(prompt_ids=[3], sampling=Sampling(max_tokens=1), seed=0, images=(draw_picture(8, 8),))
    with pytest.raises(EngineError, match="has pictures, but the model reads none"):
        run(make_engine(tmp_path), request)


def test_specs_have_the_names_and_shapes_of_the_models_files(path: Path) -> None:
    with safe_open(path / "model.safetensors", "pt") as file:
        saved = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  # no mapping
    assert {spec.name: spec.shape for spec in make_engine(path).specs()} == saved


@pytest.mark.slow("imports torch with a fake device in a process of its own")
def test_on_a_device_of_its_own_it_decodes_the_same(path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.rollout.engines.transformers.npu_process", str(path), "float32"]
    environment = installed_at(tmp_path)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (facts,) = json.loads(done.stdout)
    assert (facts["strays"], facts["current"]) == ([], 0)
    assert len(facts["npu:1"]) == 6
    for (tokens, logprobs, _), expected in zip(facts["npu:1"], facts["cpu"], strict=True):
        assert tokens == expected[0]
        assert logprobs == pytest.approx(expected[1], abs=2e-5)
