"""What a pass with pictures takes by the plan is what it takes on a CPU."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from asyncrl.algo.logprobs import score_states
from asyncrl.trainer.activations import LiveBytes, largest_micro_batch, pass_bytes
from asyncrl.trainer.model.activation_checkpointing import enable_checkpointing
from asyncrl.trainer.model.loading import packed_states
from asyncrl.trainer.model.vision import freeze_tower, picture_features
from asyncrl.trainer.packing.batch import MicroBatch, collate
from asyncrl.trainer.packing.packed_attention import use_packed_attention
from asyncrl.trainer.packing.pictures import Pictures
from asyncrl.trainer.packing.trajectory import TrainingTrajectory
from asyncrl.trainer.planned_pictures import AllOnMeta
from tests.conftest import make_vision_model

CPU = torch.device("cpu")
SIDE, COMPLETION, GROUP_SIZE = 12, 20, 3
"""Tokens along each side of a prompt's picture, tokens of a completion, completions of a prompt."""


def batch_of_one_picture(image_token_id: int) -> MicroBatch:
    prompt, logprobs = np.full(SIDE**2, image_token_id, np.int32), np.zeros(COMPLETION, np.float32)
    completions = [np.full(COMPLETION, index, np.int32) for index in range(GROUP_SIZE)]
    return collate([TrainingTrajectory(0, prompt, one, logprobs, 0.0) for one in completions], device=CPU)


def real_peak(model: Any) -> int:
    """Peak of a pass on a CPU, with gradients freed as soon as they are complete."""
    use_packed_attention(model)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.register_post_accumulate_grad_hook(lambda weight: setattr(weight, "grad", None))
    batch, head = batch_of_one_picture(model.config.image_token_id), model.get_output_embeddings()
    with LiveBytes(*model.parameters(), *model.buffers()) as live:
        pixels = torch.zeros(4 * SIDE**2, 3 * 2 * 4 * 4)
        pictures = Pictures(pixels, torch.tensor([[1, 2 * SIDE, 2 * SIDE]]), torch.arange(SIDE**2))
        features = picture_features(model, pictures, CPU)
        del pixels, pictures
        states = packed_states(model.base_model, batch, **features)[batch.positions]
        del features
        scores = score_states(states, head.weight, head.bias, batch.token_ids, temperature=1.0)
        del states
        scores.logprobs.sum().backward()
    return live.peak


@pytest.mark.slow("a pass of each of many models")
@pytest.mark.parametrize("freeze_vision", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True, "selective"])
@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
def test_a_pass_with_pictures_takes_what_the_plan_says(config, tmp_path, family, checkpointing, freeze_vision):
    make_vision_model(tmp_path, family)
    settings = AutoConfig.from_pretrained(tmp_path)
    real = AutoModelForImageTextToText.from_config(settings, attn_implementation="sdpa")
    with torch.device("meta"):
        planned = AutoModelForImageTextToText.from_config(settings, attn_implementation="sdpa")
    if freeze_vision:
        freeze_tower(real, "real")
        freeze_tower(planned, "planned")
    if checkpointing:
        enable_checkpointing(real, "real", checkpointing)
    run = config(
        data={"max_prompt_tokens": SIDE**2},
        sampling={"max_tokens": COMPLETION},
        schedule={"groups_per_step": 1, "group_size": GROUP_SIZE},
    )

    found = pass_bytes(planned, largest_micro_batch(run, 1), dtype=torch.float32, checkpointing=checkpointing)
    assert found.peak == pytest.approx(real_peak(real), rel=0.06)
    assert (found.tower > 0) != freeze_vision


def test_what_has_memory_is_left_alone_among_itself() -> None:
    with AllOnMeta():
        assert (torch.ones(2) + torch.ones(2)).tolist() == [2.0, 2.0]
        mixed = torch.ones(2, device="meta")[torch.zeros(3, dtype=torch.long)]
    assert (mixed.shape, mixed.is_meta) == ((3,), True)
