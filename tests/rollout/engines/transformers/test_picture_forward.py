"""The general forward pass with pictures against the model's own full forward pass."""

import asyncio
from pathlib import Path

import pytest
import torch

from asyncrl.rollout.engines.transformers.engine import MOST, QUIET, LoopTurns, PictureForward
from asyncrl.rollout.engines.transformers.kv_cache import KVCache
from asyncrl.rollout.engines.transformers.pictures import VisionTower
from tests.conftest import BEYOND_TOKENIZER, make_vision_model
from tests.rollout.engines.vision_models import FAMILIES, full_logprobs, load, picture_request


@pytest.mark.parametrize("family", FAMILIES)
def test_the_token_after_a_prompt_with_pictures_is_that_of_the_full_forward_pass(tmp_path: Path, family: str) -> None:
    make_vision_model(tmp_path, family)
    model, processor = load(tmp_path)
    config = model.config.get_text_config()
    cache = KVCache(config, slots=2, positions=64, dtype=model.dtype, device=model.device)
    tower = VisionTower(model, processor)
    forward = PictureForward(model, cache, tower)
    request = picture_request(processor, (24, 16), (8, 24))
    placed = tower.place(request)
    assert placed is not None
    ids, last = torch.tensor([request.prompt_ids]), len(request.prompt_ids) - 1

    with torch.inference_mode():
        forward.prefill(torch.tensor([0]), ids[:, :-1], torch.tensor([last]), [placed])
        at = torch.tensor([last])
        logits = forward.step(ids[:, -1], at, at, last + 1, at + placed.delta)[0]

    sampled = sorted(set(range(BEYOND_TOKENIZER.start)) - processor.vision_token_ids)
    expected = [full_logprobs(tmp_path, model, request, [token])[0] for token in sampled]
    torch.testing.assert_close(logits[sampled].log_softmax(-1), torch.tensor(expected), atol=2e-5, rtol=1e-5)


# ── test turns ────────────────────────────────────────────────────────────────────────────────
# The event loop gets turns until it has no other work.


class Clock:
    """A turn takes ``idle_s``, and more if other tasks worked in it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1e-5
        return self.now_s


def give(num_busy_turns: int) -> tuple[int, int]:
    """Turns that were given beside a chain of this many turns of work, and how many of these were done by then."""

    async def main() -> tuple[int, int]:
        clock, done = Clock(), 0
        turns = LoopTurns(clock)
        await turns.give()

        async def work() -> None:
            nonlocal done
            for _ in range(num_busy_turns):
                clock.now_s += 1e-3
                done += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(work())
        given = await turns.give()
        before = done
        await task
        return given, before

    return asyncio.run(main())


def test_a_loop_without_other_work_gets_the_fewest_turns() -> None:
    assert give(0) == (QUIET, 0)


def test_a_chain_of_turns_is_finished_before_the_next_step() -> None:
    assert give(9) == (9 + QUIET, 9)


def test_work_without_end_does_not_stop_decoding() -> None:
    assert give(1000) == (MOST, MOST)
