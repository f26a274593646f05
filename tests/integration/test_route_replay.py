"""
Experts on their whole way: engine, wire, check, trainer. The trainer's routers differ from the engine's, as they do
where rounding decides between experts that are nearly tied; only with replay do tokens keep their log-probs.
"""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.utils import logging

from asyncrl.algo.routing import from_routing
from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.engine import Completion, Request
from asyncrl.episodes.record import SampledTrajectory
from asyncrl.errors import ConfigError, EngineError
from asyncrl.messages.rollout import Lease
from asyncrl.messages.sound import problem_of
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.token_ids import TokenIds
from asyncrl.messages.trainer import ScoredTrajectory
from asyncrl.messages.trajectory import Prompt, Sampling, Trajectory, Unit
from asyncrl.rollout.engines.transformers.engine import TransformersEngine
from asyncrl.rollout.results import to_put_item
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.loop.fetching import limits_of, training_trajectory
from asyncrl.trainer.packing.step import TrainingTrajectory

PROMPT_IDS = [14, 12, 3, 15, 17]
SAMPLED = Sampling(20, temperature=0.9, replay_routes=True)
TOLERANCE = 3e-5
"""Rounding of float32 differs between processors."""


@pytest.fixture(scope="module")
def path(toy: Path) -> Path:
    """A model of six experts with the toy's tokenizer, in which rounding decides between three of them."""
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=22,
        hidden_size=32,
        moe_intermediate_size=24,
        num_experts=6,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        num_hidden_layers=3,
        mlp_only_layers=[1],
        intermediate_size=24,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        initializer_range=0.2,
        eos_token_id=1,
    )
    model = Qwen3MoeForCausalLM(config)
    for router in _routers(model):
        router.weight.data = router.weight[[0, 0, 0, 3, 3, 3]].clone()
    model.save_pretrained(toy / "tied")
    for file in (toy / "model").glob("tokenizer*"):
        (toy / "tied" / file.name).write_bytes(file.read_bytes())
    return toy / "tied"


def _routers(model: nn.Module) -> list[Any]:
    return [module.gate for module in model.modules() if hasattr(module, "experts")]


def a_config(path: Path, *, replay_routes: bool = True, **sections: Any) -> Config:
    base: dict[str, Any] = {
        "model": {"path": str(path)},
        "data": {"train": "unused", "max_prompt_tokens": 8},
        "sampling": {"max_tokens": 20, "temperature": 0.9},
        "rollout": {"replay_routes": replay_routes},
        "trainer": {"lr": 0.05},
    }
    return decode(base | sections)


def make_engine(path: Path) -> TransformersEngine:
    return TransformersEngine.load(str(path), slots=3, max_tokens_per_slot=32, replay_routes=True)


def sample(engine: TransformersEngine, num: int = 8, sampling: Sampling = SAMPLED) -> list[Completion]:
    async def main() -> list[Completion]:
        requests = [Request(prompt_ids=PROMPT_IDS, sampling=sampling, seed=seed) for seed in range(num)]
        return await asyncio.gather(*map(engine.generate, requests))

    return asyncio.run(main())


def through_the_wire(completion: Completion, index: int, config: Config, learner: Learner) -> TrainingTrajectory:
    unit = Unit(0, index)
    lease = Lease(1, 0, [index], "train", Prompt(), SAMPLED, 0, 8, 60.0)
    sampled = SampledTrajectory(prompt_ids=PROMPT_IDS, completion=completion, text="")
    item = to_put_item(lease, unit, sampled, node="r", token_ids=TokenIds(22))
    trajectory = msgspec.msgpack.decode(item.payload, type=Trajectory)
    limits = limits_of(config, TokenIds(22), 3, learner.route_shape)
    assert problem_of(trajectory, unit, item.summary, limits) == ""
    scored = ScoredTrajectory(unit, SpoolRef("s", 0, 0, 0, 0), float(index % 2), {}, item.summary)
    return training_trajectory(trajectory, scored, limits)


def train(
    path: Path, completions: list[Completion], config: Config, *, noise: float = 1e-6, version: int = 0
) -> dict[str, float]:
    """Metrics of a step of a trainer whose routers differ by ``noise``."""
    learner = Learner(config, path)
    torch.manual_seed(1)
    with torch.no_grad():
        for router in _routers(learner.policy.model):
            router.weight += noise * torch.randn_like(router.weight)
    trajectories = [through_the_wire(one, n, config, learner) for n, one in enumerate(completions)]
    return learner.train(trajectories, version)


def test_tokens_that_take_the_samplers_experts_have_its_logprobs(path: Path) -> None:
    metrics = train(path, sample(make_engine(path)), a_config(path))

    assert metrics["logprob_gap_tokens"] == metrics["trained_tokens"] > 20
    assert metrics["logprob_gap_max"] < TOLERANCE


def test_without_replay_routers_that_differ_by_rounding_choose_other_experts(path: Path) -> None:
    metrics = train(path, sample(make_engine(path)), a_config(path, replay_routes=False))

    assert metrics["logprob_gap_max"] > 0.1


@pytest.mark.parametrize("checkpointing", [True, "selective"])
def test_layers_that_are_computed_again_take_the_same_experts(path: Path, checkpointing: Any) -> None:
    completions = sample(make_engine(path))
    plain = train(path, completions, a_config(path))
    again = train(path, completions, a_config(path, trainer={"lr": 0.05, "gradient_checkpointing": checkpointing}))

    assert again["grad_norm"] == pytest.approx(plain["grad_norm"], rel=1e-4)
    assert again["grad_norm"] != pytest.approx(
        train(path, completions, a_config(path, replay_routes=False))["grad_norm"], rel=1e-4
    )


def test_log_probs_before_the_step_take_them_and_the_reference_does_not(path: Path) -> None:
    algorithm = {"correction": {"mode": "decoupled", "importance": "token"}, "kl_coef": 0.1, "kl": "k2"}
    metrics = train(path, sample(make_engine(path)), a_config(path, algorithm=algorithm))

    assert metrics["rollout_corr/rollout_is_max"] == pytest.approx(1, abs=1e-4)
    assert metrics["kl_ref"] > 1e-4


async def written_after(engine: TransformersEngine, num_tokens: int, request: Request) -> Completion:
    """The unfinished completion once it has ``num_tokens`` tokens, resumed ones included."""
    while (written := engine.written(request)) is None or len(written.completion_ids) < num_tokens:
        await asyncio.sleep(0)
    return written


def experts_of(completion: Completion) -> np.ndarray:
    assert completion.routing
    experts = from_routing(completion.routing)
    assert len(experts) == len(PROMPT_IDS) + len(completion.completion_ids) - 1
    return experts


def requests(num: int) -> list[Request]:
    return [Request(prompt_ids=PROMPT_IDS, sampling=SAMPLED, seed=seed) for seed in range(num)]


def test_a_resumed_completion_keeps_the_experts_of_the_node_before(path: Path) -> None:
    async def cut(engine: TransformersEngine, request: Request, num_tokens: int) -> Completion:
        task = asyncio.create_task(engine.generate(request))
        written = await written_after(engine, num_tokens, request)
        task.cancel()
        return written

    (request,) = requests(1)
    prefix = asyncio.run(cut(make_engine(path), request, 3))
    flipped = make_engine(path)  # chooses others for the same tokens
    for router in _routers(flipped._model):
        router.weight.data = router.weight.flip(0)
    again = asyncio.run(cut(flipped, replace(request, resume_from=prefix), 5))
    done = asyncio.run(make_engine(path).generate(replace(request, resume_from=again)))

    first, second, third = map(experts_of, (prefix, again, done))
    np.testing.assert_array_equal(second[: len(first)], first)
    np.testing.assert_array_equal(third[: len(second)], second)
    assert (third[len(PROMPT_IDS) :] != third[0]).any()


def test_after_new_weights_the_experts_of_tokens_sampled_before_are_kept(path: Path) -> None:
    """The cache is computed again, under routers that choose others for the same tokens."""

    async def main(engine: TransformersEngine) -> tuple[list[Completion | None], list[Completion]]:
        running = requests(3)
        tasks = [asyncio.create_task(engine.generate(request)) for request in running]
        await written_after(engine, 3, running[0])
        before = [engine.written(request) for request in running]
        new = Learner(a_config(path), path).policy
        for router in _routers(new.model):
            router.weight.data = router.weight.flip(0) * 1.5
        await engine.pause()
        await engine.swap(1, dict(new.named_weights()))
        await engine.resume()
        return before, list(await asyncio.gather(*tasks))

    before, after = asyncio.run(main(make_engine(path)))
    cut = [(old, new) for old, new in zip(before, after, strict=True) if old]
    assert cut
    for old, new in cut:
        np.testing.assert_array_equal(experts_of(new)[: len(experts_of(old))], experts_of(old))
        assert [span.policy_version for span in new.spans] == [0, 1]


def test_experts_of_another_model_are_refused_by_name(path: Path) -> None:
    config, (completion,) = a_config(path), sample(make_engine(path), 1)
    assert completion.routing
    learner = Learner(config, path)
    for wrong, message in (
        (replace(completion.routing, layers=1, top_k=4), "expected 2 experts in each of 2 layers"),
        (
            replace(completion.routing, experts=memoryview(bytes(len(completion.routing.experts) - 1) + b"\6")),
            "expert 6",
        ),
        (None, "none, expected those of each token but the last"),
    ):
        trajectory = Trajectory(
            unit=Unit(0, 0),
            prompt_ids=memoryview(np.array(PROMPT_IDS, "<i4").tobytes()),
            completion_ids=memoryview(np.array(completion.completion_ids, "<i4").tobytes()),
            behavior_logprobs=memoryview(np.array(completion.behavior_logprobs, "<f4").tobytes()),
            spans=completion.spans,
            finish_reason="stop",
            text="",
            routing=wrong,
        )
        problem = problem_of(trajectory, Unit(0, 0), None, limits_of(config, TokenIds(22), 3, learner.route_shape))
        assert problem.startswith("impossible experts: ")
        assert message in problem


def test_a_model_without_experts_and_an_engine_that_records_none_are_refused(toy: Path, path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Qwen3ForCausalLM has no mixture of experts; set it to false"):
        make_engine(toy / "model")
    with pytest.raises(ConfigError, match=r"has no mixture of experts behind a router of its own"):
        Learner(a_config(toy / "model"), toy / "model")
    with pytest.raises(EngineError, match="records no experts: make it with replay_routes"):
        sample(TransformersEngine.load(str(path), slots=3, max_tokens_per_slot=32), 1)
