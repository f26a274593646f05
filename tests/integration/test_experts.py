"""A mixture-of-experts model: fused experts in trainer and engine, one tensor per expert in the transfer."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.utils import logging

from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.engine import Completion, Request
from asyncrl.messages.trajectory import Sampling, Span
from asyncrl.rollout.engines.transformers.engine import TransformersEngine
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.packing.step import TrainingTrajectory
from asyncrl.weights.contents.layout import Layout

PROMPT_IDS = [14, 12, 3, 15, 17]
SAMPLED = Sampling(20, temperature=0.8)
GREEDY = Sampling(20, temperature=0.0)


@pytest.fixture(scope="module")
def path(toy: Path) -> Path:
    """A model of four experts with the toy's tokenizer."""
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    torch.manual_seed(0)
    path = toy / "experts"
    config = Qwen3MoeConfig(
        vocab_size=22,
        hidden_size=32,
        moe_intermediate_size=24,
        num_experts=4,
        num_experts_per_tok=2,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        initializer_range=0.2,
        eos_token_id=1,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(path)
    for file in (toy / "model").glob("tokenizer*"):
        (path / file.name).write_bytes(file.read_bytes())
    return path


def a_config(path: Path, **sections: Any) -> Config:
    base = {
        "model": {"path": str(path)},
        "data": {"train": "unused", "max_prompt_tokens": 8},
        "sampling": {"max_tokens": 20, "temperature": 0.8},
        "trainer": {"lr": 0.02},
    }
    return decode(base | sections)


def make_engine(path: Path) -> TransformersEngine:
    return TransformersEngine.load(str(path), slots=4, max_tokens_per_slot=32)


def sample(engine: TransformersEngine, sampling: Sampling, num: int = 1) -> list[Completion]:
    async def main() -> list[Completion]:
        requests = [Request(prompt_ids=PROMPT_IDS, sampling=sampling, seed=seed) for seed in range(num)]
        return await asyncio.gather(*map(engine.generate, requests))

    return asyncio.run(main())


def swap(engine: TransformersEngine, policy_version: int, weights: dict[str, torch.Tensor]) -> None:
    async def main() -> None:
        await engine.pause()
        await engine.swap(policy_version, weights)
        await engine.resume()

    asyncio.run(main())


def trajectories_of(completions: list[Completion]) -> list[TrainingTrajectory]:
    return [
        TrainingTrajectory(
            group_id=0,
            prompt_ids=np.array(PROMPT_IDS, np.int32),
            completion_ids=np.array(completion.completion_ids, np.int32),
            behavior_logprobs=np.array(completion.behavior_logprobs, np.float32),
            reward=float(index % 2),
            spans=completion.spans,
        )
        for index, completion in enumerate(completions)
    ]


def test_trainer_and_engine_have_the_same_layout(path: Path) -> None:
    learner, engine = Learner(a_config(path), path), make_engine(path)

    assert Layout(learner.policy.specs(), 1 << 20).difference(engine.specs()) is None
    assert "model.layers.1.mlp.experts.3.gate_proj.weight" in {spec.name for spec in engine.specs()}


def test_after_a_step_the_engine_has_the_tokens_and_logprobs_of_the_trainers_model(path: Path, tmp_path: Path) -> None:
    learner, engine = Learner(a_config(path), path), make_engine(path)
    before = sample(engine, GREEDY)
    first = learner.train(trajectories_of(sample(engine, SAMPLED, 4)), 0)
    swap(engine, 1, {name: weight.clone() for name, weight in learner.named_weights()})
    learner.policy.model.save_pretrained(tmp_path)
    for file in path.glob("tokenizer*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())

    (written,), (fresh,) = sample(engine, GREEDY), sample(make_engine(tmp_path), GREEDY)
    assert written.completion_ids == fresh.completion_ids
    assert written.completion_ids != before[0].completion_ids, "the swap changes the tokens"
    assert written.spans == [Span(1, 0, len(written.completion_ids))]
    second = learner.train(trajectories_of(sample(engine, SAMPLED, 4)), 1)
    for metrics in (first, second):
        assert metrics["logprob_gap_tokens"] == metrics["trained_tokens"]
        assert metrics["logprob_gap_max"] < 1e-4


@pytest.mark.parametrize(("version", "widest"), [(0, 1e-4), (1, None)])
def test_an_engine_with_old_weights_shows_as_a_gap(path: Path, version: int, widest: float | None) -> None:
    """With ``version`` 1 the engine has the weights of version 0 under the number 1."""
    learner, engine = Learner(a_config(path), path), make_engine(path)
    old = {name: weight.clone() for name, weight in learner.named_weights()}
    if version:
        learner.train(trajectories_of(sample(engine, SAMPLED, 4)), 0)
    swap(engine, version, old)

    gap = learner.train(trajectories_of(sample(engine, SAMPLED, 4)), version)["logprob_gap_mean"]
    assert gap < widest if widest else gap > 0.01
