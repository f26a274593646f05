"""
Weights swapped in the middle of a completion: engine and trainer agree on the log-prob of every token.

Different code computes the log-probs: the engine decodes with a cache and a slot table (behavior_logprobs), and the
trainer does one forward pass over right-padded rectangles (logprobs).
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.engine import Completion, Request
from asyncrl.messages.trajectory import Sampling, Span
from asyncrl.rollout.engines.transformers.engine import TransformersEngine
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.packing.batch import collate
from asyncrl.trainer.packing.step import TrainingTrajectory

PROMPT_IDS = [14, 12, 3, 15, 17, 18, 19]
MAX_TOKENS = 24
SLOTS = 3
TOLERANCE = 1e-4
"""Tolerance of float32 sums computed in two orders."""


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def config(toy: Path) -> Config:
    """The learning rate is so large that one step changes the greedy tokens."""
    return decode(
        {
            "model": {"path": str(toy / "model")},
            "data": {"train": "unused", "max_prompt_tokens": 8},
            "sampling": {"max_tokens": MAX_TOKENS},
            "trainer": {"lr": 0.05},
        }
    )


@pytest.fixture
def learner(config: Config, toy: Path) -> Learner:
    return Learner(config, toy / "model")


def make_engine(toy: Path, kv: str = "recompute") -> TransformersEngine:
    return TransformersEngine.load(
        str(toy / "model"), slots=SLOTS, max_tokens_per_slot=len(PROMPT_IDS) + MAX_TOKENS, kv=kv
    )


def request(seed: int, temperature: float) -> Request:
    return Request(prompt_ids=PROMPT_IDS, sampling=Sampling(MAX_TOKENS, temperature=temperature), seed=seed)


def train_once(learner: Learner) -> dict[str, torch.Tensor]:
    """Do one optimizer step; returns a copy of the new weights, as a transfer would."""
    random = np.random.default_rng(0)
    trajectories = [
        TrainingTrajectory(
            group_id=0,
            prompt_ids=np.array(PROMPT_IDS, np.int32),
            completion_ids=random.integers(2, 22, 8).astype(np.int32),
            behavior_logprobs=np.full(8, -3.0, np.float32),
            reward=float(index % 2),
        )
        for index in range(4)
    ]
    learner.train(trajectories)
    return {name: weight.clone() for name, weight in learner.named_weights()}


def run_through_a_swap(
    engine: TransformersEngine, weights: Mapping[str, torch.Tensor], requests: list[Request], *, after: int
) -> list[Completion]:
    """Decode ``after`` steps with the old weights, swap, and decode to the end."""

    async def main() -> list[Completion]:
        try:
            tasks = [asyncio.create_task(engine.generate(request)) for request in requests]
            for _ in range(after + 1):
                await asyncio.sleep(0)
            await engine.pause()
            await engine.swap(1, weights)
            await engine.resume()
            return await asyncio.gather(*tasks)
        finally:
            await engine.aclose()

    return asyncio.run(main())


def as_trajectory(completion: Completion) -> TrainingTrajectory:
    return TrainingTrajectory(
        group_id=0,
        prompt_ids=np.array(PROMPT_IDS, np.int32),
        completion_ids=np.array(completion.completion_ids, np.int32),
        behavior_logprobs=np.array(completion.behavior_logprobs, np.float32),
        reward=0.0,
    )


def trainer_logprobs(policy: Policy, completions: list[Completion], temperature: float) -> list[np.ndarray]:
    """[T] log-probs of each completion, computed by the trainer's own code."""
    trajectories = [as_trajectory(completion) for completion in completions]
    batch = collate(trajectories, device=policy.device)
    with torch.no_grad():
        flat = policy.score(batch, temperature=temperature).logprobs.numpy()
    return np.split(flat, np.cumsum([len(completion.completion_ids) for completion in completions])[:-1])


def test_the_trainer_computes_the_logprobs_the_engine_sampled_from(toy, learner):
    engine = make_engine(toy)

    async def main():
        completions = await asyncio.gather(*(engine.generate(request(seed, 0.8)) for seed in range(6)))
        await engine.aclose()
        return completions

    completions = asyncio.run(main())
    for completion, logprobs in zip(completions, trainer_logprobs(learner.policy, completions, 0.8), strict=True):
        assert completion.spans == [Span(0, 0, len(completion.completion_ids))]
        np.testing.assert_allclose(completion.behavior_logprobs, logprobs, atol=TOLERANCE)


@pytest.mark.parametrize("kv", ["recompute", "keep"])
def test_tokens_before_and_after_a_swap_have_the_logprobs_of_their_own_version(toy, config, learner, kv):
    """With ``keep`` the cache mixes both versions, so no single model has the log-probs after the swap."""
    before = Learner(config, toy / "model").policy
    weights = train_once(learner)
    completions = run_through_a_swap(make_engine(toy, kv), weights, [request(seed, 1.0) for seed in range(3)], after=6)
    mixed = [completion for completion in completions if len(completion.spans) == 2]
    assert mixed, "some completion spans the swap"
    old, new = (trainer_logprobs(policy, mixed, 1.0) for policy in (before, learner.policy))
    for completion, old_logprobs, new_logprobs in zip(mixed, old, new, strict=True):
        first, second = completion.spans
        assert (first.policy_version, second.policy_version) == (0, 1)
        cut = first.end
        recorded = np.array(completion.behavior_logprobs)
        np.testing.assert_allclose(recorded[:cut], old_logprobs[:cut], atol=TOLERANCE)
        assert np.abs(old_logprobs - new_logprobs)[:cut].max() > 100 * TOLERANCE, "the versions differ"
        if kv == "recompute":
            np.testing.assert_allclose(recorded[cut:], new_logprobs[cut:], atol=TOLERANCE)


def test_after_a_swap_greedy_tokens_equal_those_of_a_fresh_model_with_the_new_weights(toy, learner):
    weights = train_once(learner)
    (completion,) = run_through_a_swap(make_engine(toy), weights, [request(0, 0.0)], after=5)
    first, _second = completion.spans
    written, continued = completion.completion_ids[: first.end], completion.completion_ids[first.end :]
    fresh = learner.policy.model
    ids = PROMPT_IDS + written
    for token_id in continued:
        with torch.no_grad():
            logits = fresh(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
        assert token_id == int(logits.argmax())
        ids.append(token_id)


def test_the_old_model_writes_other_tokens(toy, learner):
    """Without this difference, the test above would pass without a swap."""
    swapped = run_through_a_swap(make_engine(toy), train_once(learner), [request(0, 0.0)], after=5)
    undisturbed = run_through_a_swap(
        make_engine(toy), dict(Policy(toy / "model").named_weights()), [request(0, 0.0)], after=5
    )
    cut = swapped[0].spans[0].end
    assert swapped[0].completion_ids[:cut] == undisturbed[0].completion_ids[:cut]
    assert swapped[0].completion_ids != undisturbed[0].completion_ids
