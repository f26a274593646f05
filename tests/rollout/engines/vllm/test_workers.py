"""Worker extension and reload: a trainer's weights in the workers of real engines."""

import asyncio
import warnings
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from asyncrl.config.config import Config
from asyncrl.config.sections.data import Data
from asyncrl.config.sections.rollout import Rollout, Vllm
from asyncrl.config.sections.run import Model
from asyncrl.config.sections.sampling import SamplingConfig
from asyncrl.config.sections.weights import Weights
from asyncrl.engine import Request
from asyncrl.messages.trajectory import Sampling
from asyncrl.rollout.engines.vllm.engine import VllmEngine
from tests.rollout.engines.feeding import feed
from tests.rollout.engines.fetching import fetch

pytestmark = [
    pytest.mark.slow("vLLM starts"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # vLLM leaves sockets open
]

ANOTHER = pytest.mark.long("another engine, up to two minutes, for another pair of what is shown below")
SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "eos_token_id": 0,
    "bos_token_id": None,
    "pad_token_id": None,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
PROMPT, MAX_TOKENS = [5, 6, 7, 8], 24


def build(family: str) -> PreTrainedModel:
    torch.manual_seed(1)
    if family == "moe":
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **EXPERTS, tie_word_embeddings=False)).eval()
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=family == "tied")).eval()


def move(model: PreTrainedModel) -> None:
    """Change every parameter by a large random step."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)


def greedy(model: PreTrainedModel) -> list[int]:
    """Greedy completion of the model itself."""
    token_ids = torch.tensor([PROMPT])
    with torch.no_grad():
        for _ in range(MAX_TOKENS):
            token_ids = torch.cat([token_ids, model(token_ids).logits[:, -1:].argmax(-1)], 1)
            if token_ids[0, -1] == 0:
                break
    return token_ids[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize(
    ("family", "ranks", "via", "weights"),
    [
        pytest.param("tied", 2, "collective", Weights(bucket_bytes=16384), marks=ANOTHER),
        pytest.param("untied", 1, "collective", Weights(bucket_bytes=16384, delta=True), marks=ANOTHER),
        ("moe", 1, "collective", Weights(bucket_bytes=16384, staging="bucket")),
        pytest.param("tied", 2, "spool", Weights(bucket_bytes=16384), marks=ANOTHER),
        pytest.param("moe", 1, "spool", Weights(bucket_bytes=16384), marks=ANOTHER),
    ],
    ids=[
        "two tensor parallel workers",
        "deltas",
        "a mixture of experts, bucket by bucket",
        "two tensor parallel workers, fetched",
        "a mixture of experts, fetched",
    ],
)
def test_after_each_publish_an_engine_decodes_as_the_trained_model(tmp_path, tokenizer, family, ranks, via, weights):
    pytest.importorskip("vllm")
    model = build(family)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    sampling = Sampling(max_tokens=MAX_TOKENS, temperature=0.0)

    async def play(engine: VllmEngine) -> list[bool]:
        agrees = []
        receives, fetches = feed(engine, model, weights), fetch(engine, model, tmp_path / "spool", weights.bucket_bytes)
        async with receives if via == "collective" else fetches as fed:
            for version in range(4):
                if version:
                    move(model)
                    await fed.publish(model, version)
                completion = await engine.generate(Request(prompt_ids=PROMPT, sampling=sampling, seed=0))
                agrees.append(completion.completion_ids == greedy(model))
                assert {span.policy_version for span in completion.spans} == {version}
        return agrees

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vLLM's own imports
        engine = VllmEngine.load(config(tmp_path, ranks))
    with asyncio.Runner() as runner:
        try:
            assert runner.run(play(engine)) == [True] * 4
        finally:
            runner.run(engine.aclose())


def config(path: Path, ranks: int) -> Config:
    vllm = Vllm(kv_cache_bytes=32 << 20, enforce_eager=True, tensor_parallel_size=ranks)
    return Config(
        model=Model(path=str(path)),
        data=Data(train="prompts.jsonl", max_prompt_tokens=64),
        sampling=SamplingConfig(max_tokens=64),
        rollout=replace(Rollout(), engine="vllm", slots=8, vllm=vllm),
    )
