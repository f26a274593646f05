"""Pictures as vLLM takes them. Needs no vLLM."""

import json
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from asyncrl.algo.routing import from_routing, to_routing
from asyncrl.engine import Completion, Request
from asyncrl.errors import EngineError
from asyncrl.messages.trajectory import Sampling, Span
from asyncrl.rollout.engines.vllm.request import VllmPictures, VllmRequest, placed
from asyncrl.vision.processor import ImageProcessor
from tests.conftest import draw_picture, make_vision_model
from tests.rollout.engines.vision_models import picture_request


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("model")
    make_vision_model(found)
    return found


@pytest.fixture
def processor(path: Path) -> ImageProcessor:
    return ImageProcessor.load(path) or pytest.fail("reads no pictures")


def test_a_prompt_has_one_token_for_each_picture_and_the_pictures_beside(processor: ImageProcessor) -> None:
    request = picture_request(processor, (24, 16), (8, 40))
    begin, image, end = processor.placeholder_ids

    prompt = VllmRequest(request, placed(request, processor)).prompt

    assert prompt["prompt_token_ids"] == [3, 4, begin, image, end, 5, begin, image, end, 5, 6, 7]
    assert [picture.size for picture in prompt["multi_modal_data"]["image"]] == [(24, 16), (8, 40)]
    assert prompt["multi_modal_uuids"] == {"image": [sha256(file).hexdigest() for file in request.images]}


def test_pictures_have_the_size_at_which_vllm_leaves_them(processor: ImageProcessor) -> None:
    request = picture_request(processor, (300, 200), (7, 5), (90, 9))
    found = VllmPictures(request, processor)
    for picture, grid in zip(found.prompt_parts()["multi_modal_data"]["image"], found.grids, strict=True):
        assert processor.grid(*picture.size) == grid
        assert (1, picture.height // 4, picture.width // 4) == grid
    pixels = processor.pixels(request.images)
    again = np.asarray(found.prompt_parts()["multi_modal_data"]["image"][0])
    assert pixels.grids == found.grids
    assert again.shape == (4 * found.grids[0][1], 4 * found.grids[0][2], 3)


def test_a_picture_that_vllm_would_resize_again_is_left_to_it(tmp_path: Path) -> None:
    make_vision_model(tmp_path)
    settings = json.loads((tmp_path / "preprocessor_config.json").read_text())
    settings["size"] = {"shortest_edge": 576, "longest_edge": 576}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    processor = ImageProcessor.load(tmp_path) or pytest.fail("reads no pictures")

    found = VllmPictures(picture_request(processor, (100, 20), (25, 23)), processor)

    assert [picture.size for picture in found.prompt_parts()["multi_modal_data"]["image"]] == [(100, 20), (24, 24)]
    assert found.grids == [processor.grid(100, 20), (1, 6, 6)]


def test_a_completion_has_the_grids_and_a_resumed_one_its_tokens_behind_the_prompt(processor: ImageProcessor) -> None:
    part = Completion(
        completion_ids=[8, 9],
        behavior_logprobs=[-0.5, -0.25],
        spans=[Span(0, 0, 2)],
        finish_reason="unfinished",
        generate_s=0.0,
    )
    request = replace(picture_request(processor, (24, 16)), resume_from=part)
    mine = VllmRequest(request, placed(request, processor))
    mine.begin(policy_version=0)
    output: Any = SimpleNamespace(token_ids=[7], logprobs=[-1.0])

    assert mine.prompt_ids[-4:] == [6, 7, 8, 9]
    assert mine.num_prompt_tokens == len(request.prompt_ids) + 2
    assert mine.completion(output, "stop").grids == [(1, 4, 6)]


def test_a_prompt_of_text_stays_as_it_is(processor: ImageProcessor) -> None:
    request = picture_request(processor)
    for reader in (processor, None):
        assert placed(request, reader) is None
    assert VllmRequest(request).prompt == {"prompt_token_ids": request.prompt_ids}


@pytest.mark.parametrize(
    ("images", "reason"),
    [
        ((b"hello",), "picture 1 of 1: a picture of 5 bytes cannot be read"),
        ((), "have 0 tokens by their files, but the prompt has 6"),
        ((draw_picture(8, 8),), "have 1 tokens by their files, but the prompt has 6"),
    ],
)
def test_pictures_that_do_not_fit_the_prompt_are_refused_for_good(
    processor: ImageProcessor, images: tuple[bytes, ...], reason: str
) -> None:
    request = replace(picture_request(processor, (24, 16)), images=images)
    with pytest.raises(EngineError, match=reason) as caught:
        placed(request, processor)
    assert not caught.value.retryable


def test_a_model_that_reads_no_pictures_refuses_them(processor: ImageProcessor) -> None:
    with pytest.raises(EngineError, match="has pictures, but the model reads none"):
        placed(picture_request(processor, (24, 16)), None)


# ── test request ──────────────────────────────────────────────────────────────────────────────
# Needs no vLLM.

PREFIX = Completion(
    completion_ids=[8, 9],
    behavior_logprobs=[-0.5, -0.25],
    spans=[Span(3, 0, 2)],
    finish_reason="unfinished",
    generate_s=100.0,
)


def make(prefix: Completion | None = None, seed: int | None = 5) -> VllmRequest:
    return VllmRequest(Request(prompt_ids=[1, 2, 3], sampling=Sampling(max_tokens=9), seed=seed, resume_from=prefix))


def seed_of(prefix: Completion | None = None, *, seed: int) -> int:
    taken = make(prefix, seed).seed
    assert taken is not None
    return taken


def test_resumed_tokens_are_prompt_to_vllm_and_part_of_the_completion():
    mine = make(PREFIX)
    mine.begin(policy_version=4)

    output: Any = SimpleNamespace(token_ids=[7], logprobs=[-1.0], masks=[])
    done = mine.completion(output, "stop")

    assert mine.prompt_ids == [1, 2, 3, 8, 9]
    assert (done.completion_ids, done.behavior_logprobs) == ([8, 9, 7], [-0.5, -0.25, -1.0])
    assert done.spans == [Span(3, 0, 2), Span(4, 2, 3)]
    assert done.generate_s >= 100.0


def test_masks_of_resumed_tokens_come_first_and_unasked_ones_are_left_out():
    asked = replace(make().request.sampling, top_k=3, replay_mask=True)
    prefix = replace(PREFIX, mask_counts=[1, 2], mask_ids=[8, 5, 9])
    output: Any = SimpleNamespace(token_ids=[7], logprobs=[-1.0], masks=[[6, 7]])

    done = VllmRequest(replace(make(prefix).request, sampling=asked)).completion(output, "stop")

    assert (done.mask_counts, done.mask_ids) == ([1, 2, 2], [8, 5, 9, 6, 7])
    unasked = make()
    unasked.begin(policy_version=4)
    assert unasked.completion(output, "stop").mask_counts == []


def test_experts_are_those_of_layers_that_have_some_and_of_resumed_tokens_the_ones_recorded_before():
    """Three prompt tokens, two resumed ones and one of vLLM, which read the first five."""
    experts = np.arange(5 * 3 * 2, dtype=np.uint8).reshape(5, 3, 2)
    output: Any = SimpleNamespace(token_ids=[7], logprobs=[-1.0], masks=[], experts=experts)
    before = np.full((4, 2, 2), 99, np.uint8)
    asked = replace(make().request.sampling, replay_routes=True)

    def completed(prefix: Completion) -> np.ndarray:
        request = VllmRequest(replace(make(prefix).request, sampling=asked), expert_layers=[0, 2])
        routing = request.completion(output, "stop").routing
        assert routing
        return from_routing(routing)

    np.testing.assert_array_equal(completed(PREFIX), experts[:, [0, 2]])
    resumed = completed(replace(PREFIX, routing=to_routing(before)))
    np.testing.assert_array_equal(resumed[:4], before)
    np.testing.assert_array_equal(resumed[4:], experts[4:, [0, 2]])


def test_a_resumed_request_has_another_seed():
    assert seed_of(seed=5) == 5
    assert seed_of(PREFIX, seed=5) == seed_of(PREFIX, seed=5)
    low_bits = {seed_of(PREFIX, seed=seed) % 2**32 for seed in range(100)}  # torch keeps only these on a CPU
    assert len(low_bits | {5}) == 101


def test_a_request_without_a_seed_has_none_when_it_is_resumed_either():
    assert make(seed=None).seed is None
    assert make(PREFIX, seed=None).seed is None


def test_a_seed_fits_what_vllm_takes():
    assert 0 <= seed_of(seed=2**63 + 7) < 2**63
    assert 0 <= seed_of(PREFIX, seed=2**63 - 1) < 2**63


def test_a_restart_takes_a_new_id_and_version():
    mine = make()
    mine.begin(policy_version=4)
    first, mine.restarts = mine.id, True

    mine.begin(policy_version=5)

    assert mine.id != first
    assert not mine.restarts
    assert mine.spans.until(1) == [Span(5, 0, 1)]
