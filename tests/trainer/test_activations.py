"""What a pass takes by the plan is what it takes on a CPU, byte by byte."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from asyncrl.algo.logprobs import MEASURED_EVERY, score_states
from asyncrl.trainer.activations import AllOnMeta, LayerInputs, LiveBytes, largest_micro_batch, pass_bytes
from asyncrl.trainer.model.host_memory import Checkpointing, enable_checkpointing
from asyncrl.trainer.model.loading import packed_states
from asyncrl.trainer.model.vision import freeze_tower, picture_features
from asyncrl.trainer.packing.batch import MicroBatch, collate
from asyncrl.trainer.packing.packed_attention import use_packed_attention
from asyncrl.trainer.packing.pictures import PackedPictures
from asyncrl.trainer.packing.step import TrainingTrajectory
from tests.conftest import make_vision_model

SHAPE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
DENSE = (Qwen3Config(**SHAPE), Qwen3ForCausalLM)
MIXTURE = (Qwen3MoeConfig(**SHAPE, **EXPERTS), Qwen3MoeForCausalLM)
SCHEDULE = {"groups_per_step": 4, "group_size": 3}


def made(kind: Any, device: str) -> Any:
    settings, model = kind
    with torch.device(device):
        return model._from_config(settings, dtype=torch.float32, attn_implementation="sdpa")


def real_peak(model: Any) -> int:
    """Peak of the same pass on a CPU, with gradients freed as soon as they are complete."""
    use_packed_attention(model)
    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(lambda weight: setattr(weight, "grad", None))
    prompts = [np.full(16, group, np.int32) for group in range(2)]
    batch = collate(
        [
            TrainingTrajectory(group, prompt, np.full(20, index, np.int32), np.zeros(20, np.float32), 0.0)
            for group, prompt in enumerate(prompts)
            for index in range(3)
        ],
        device=torch.device("cpu"),
    )
    head = model.get_output_embeddings()
    with LiveBytes(*model.parameters(), *model.buffers()) as live:
        states = packed_states(model.base_model, batch)[batch.positions]
        scores = score_states(states, head.weight, head.bias, batch.token_ids, temperature=1.0, entropy=MEASURED_EVERY)
        del states
        scores.logprobs.sum().backward()
    return live.peak


@pytest.mark.parametrize("kind", [DENSE, MIXTURE], ids=["dense", "experts"])
@pytest.mark.parametrize(
    ("checkpointing", "offload"),
    [(False, False), (True, False), ("selective", False), (True, True), ("selective", True)],
    ids=["all kept", "recomputed", "selective", "inputs away", "selective, inputs away"],
)
def test_a_pass_takes_what_the_plan_says(config, kind, checkpointing, offload):
    planned, real = made(kind, "meta"), made(kind, "cpu")
    inputs = LayerInputs(leave=offload)
    if checkpointing:
        enable_checkpointing(real, "real", checkpointing, inputs=inputs)

    batch = largest_micro_batch(config(schedule=SCHEDULE), num_ranks=2)
    found = pass_bytes(planned, batch, dtype=torch.float32, checkpointing=checkpointing, offload=offload)

    assert len(batch.lengths) == 6
    assert found.peak == pytest.approx(real_peak(real), rel=0.03)
    num_layers, num_tokens = SHAPE["num_hidden_layers"], batch.input_ids.numel()
    expected = num_layers * num_tokens * SHAPE["hidden_size"] * 4 if checkpointing else 0
    assert found.inputs == inputs.num_bytes == expected


MODES: list[tuple[Checkpointing, bool]] = [(False, False), ("selective", False), (True, False), (True, True)]


def test_recomputing_activations_takes_less_and_the_entropy_more(config):
    batch = largest_micro_batch(config(schedule=SCHEDULE), num_ranks=1)
    kept, selective, recomputed, away = (
        pass_bytes(made(DENSE, "meta"), batch, dtype=torch.float32, checkpointing=checkpointing, offload=offload)
        for checkpointing, offload in MODES
    )
    with_entropy = pass_bytes(made(DENSE, "meta"), batch, dtype=torch.float32, entropy=True)

    assert recomputed.layers < 0.6 * kept.layers
    assert recomputed.layers < selective.layers < 0.9 * kept.layers
    assert away.layers <= recomputed.layers - recomputed.inputs // 2
    assert with_entropy.head > kept.head


def test_ranks_that_share_a_row_take_their_part_of_its_memory(config):
    alone = largest_micro_batch(config(schedule=SCHEDULE), num_ranks=1)
    shared = largest_micro_batch(config(schedule=SCHEDULE, trainer={"ranks": 2, "sequence_parallel": 2}), num_ranks=2)
    whole, part = (pass_bytes(made(DENSE, "meta"), batch, dtype=torch.float32) for batch in (alone, shared))

    assert (alone.lengths, alone.num_packed) == (shared.lengths, shared.num_packed)
    assert part.head == pytest.approx(whole.head / 2, rel=0.1)
    assert part.layers == pytest.approx(whole.layers / 2, rel=0.1)


def test_of_ranks_that_share_a_row_the_one_with_the_most_to_predict_is_planned(config):
    one_group, sharing = {"groups_per_step": 1, "group_size": 3}, {"ranks": 2, "sequence_parallel": 2}
    batch = largest_micro_batch(config(schedule=one_group, trainer=sharing), num_ranks=2)
    assert batch.num_packed == 16 + 3 * 19 + 1
    assert len(batch.token_ids) == 36, "of 60: the other has the prompt"


@pytest.mark.parametrize(
    ("trainer", "ranks", "trajectories"),
    [
        ({}, 1, 12),
        ({}, 4, 3),
        ({"mini_batches": 2}, 1, 6),
        ({"max_tokens_per_micro_batch": 100}, 1, 3),
        ({"max_tokens_per_micro_batch": 50, "ranks": 2, "sequence_parallel": 2}, 2, 3),
    ],
)
def test_the_largest_micro_batch_is_what_a_rank_gets_of_a_step(config, trainer, ranks, trajectories):
    batch = largest_micro_batch(config(schedule=SCHEDULE, trainer=trainer), ranks)
    assert len(batch.lengths) == trajectories
    assert batch.input_ids.is_meta


def test_bytes_are_counted_until_they_are_freed():
    known = torch.zeros(1000)
    with LiveBytes(known) as live:
        view, kept = known[10:], torch.ones(10)
        assert live.now == 40
        del kept
        assert (live.now, live.restart(), live.peak) == (0, 40, 0)
    assert len(view) == 990


def test_the_longest_trajectory_of_an_environment_is_an_episode(config):
    environment = {"function": "unused.py:Unused", "max_tokens": 90}
    completions, episodes = (
        largest_micro_batch(config(schedule=SCHEDULE, **sections), num_ranks=2)
        for sections in ({}, {"environment": environment})
    )
    assert set(completions.lengths) == {20}
    assert set(episodes.lengths) == {90}


# ── test planned pictures ─────────────────────────────────────────────────────────────────────
# What a pass with pictures takes by the plan is what it takes on a CPU.

CPU = torch.device("cpu")
SIDE, COMPLETION, GROUP_SIZE = 12, 20, 3
"""Tokens along each side of a prompt's picture, tokens of a completion, completions of a prompt."""


def batch_of_one_picture(image_token_id: int) -> MicroBatch:
    prompt, logprobs = np.full(SIDE**2, image_token_id, np.int32), np.zeros(COMPLETION, np.float32)
    completions = [np.full(COMPLETION, index, np.int32) for index in range(GROUP_SIZE)]
    return collate([TrainingTrajectory(0, prompt, one, logprobs, 0.0) for one in completions], device=CPU)


def planned_pictures_real_peak(model: Any) -> int:
    """Peak of a pass on a CPU, with gradients freed as soon as they are complete."""
    use_packed_attention(model)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.register_post_accumulate_grad_hook(lambda weight: setattr(weight, "grad", None))
    batch, head = batch_of_one_picture(model.config.image_token_id), model.get_output_embeddings()
    with LiveBytes(*model.parameters(), *model.buffers()) as live:
        pixels = torch.zeros(4 * SIDE**2, 3 * 2 * 4 * 4)
        pictures = PackedPictures(pixels, torch.tensor([[1, 2 * SIDE, 2 * SIDE]]), torch.arange(SIDE**2))
        features = picture_features(model, pictures, CPU)
        del pixels, pictures
        states = packed_states(model.base_model, batch, **features)[batch.positions]
        del features
        scores = score_states(states, head.weight, head.bias, batch.token_ids, temperature=1.0, entropy=MEASURED_EVERY)
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
    assert found.peak == pytest.approx(planned_pictures_real_peak(real), rel=0.06)
    assert (found.tower > 0) != freeze_vision


def test_what_has_memory_is_left_alone_among_itself() -> None:
    with AllOnMeta():
        assert (torch.ones(2) + torch.ones(2)).tolist() == [2.0, 2.0]
        mixed = torch.ones(2, device="meta")[torch.zeros(3, dtype=torch.long)]
    assert (mixed.shape, mixed.is_meta) == ((3,), True)
