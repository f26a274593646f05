"""The table of docs/models.md is what trainer and built-in engine do with a small random model of each type."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedTokenizerFast

from asyncrl.config.model.weights import check_weights
from asyncrl.config.sections.trainer import Lora
from asyncrl.engine import Completion, Request
from asyncrl.errors import ConfigError
from asyncrl.messages.trajectory import Sampling, Span
from asyncrl.rollout.engines.transformers.engine import TransformersEngine
from asyncrl.trainer.model.architecture import check_architecture
from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.packing.batch import collate
from asyncrl.trainer.packing.step import TrainingTrajectory

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
VOCAB = 64
WIDTHS = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
LATENT = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2, Qwen2.5", {}),
    "qwen2_moe": ("Qwen1.5-MoE, Qwen2-MoE", {"num_experts": 4, "shared_expert_intermediate_size": 16, **EXPERTS}),
    "qwen3": ("Qwen3", {}),
    "qwen3_moe": ("Qwen3-MoE", {"num_experts": 4, **EXPERTS}),
    "llama": ("Llama 2 and 3, DeepSeek-R1-Distill-Llama", {}),
    "mistral": ("Mistral, Ministral", {}),
    "mixtral": ("Mixtral", {"num_local_experts": 4}),
    "phi": ("Phi 1.5 and 2", {}),
    "phi3": ("Phi 3 and 4", {}),
    "olmo2": ("OLMo 2", {}),
    "olmo3": ("OLMo 3", {}),
    "gemma3_text": ("Gemma 3, text", {"query_pre_attn_scalar": 8}),
    "smollm3": ("SmolLM3", {}),
    "granite": ("Granite, if its logits are not scaled", {}),
    "ernie4_5": ("ERNIE 4.5, dense", {}),
    "hunyuan_v1_dense": ("Hunyuan, dense", {}),
    "seed_oss": ("Seed-OSS", {}),
    "exaone4": ("EXAONE 4", {}),
    "starcoder2": ("StarCoder2", {}),
    "gpt2": ("GPT-2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    "deepseek_v3": (
        "DeepSeek V3",
        {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_key_value_heads": 4, **LATENT, **EXPERTS},
    ),
    "gemma2": ("Gemma 2", {}),
    "cohere2": ("Command R7B", {}),
    "gpt_oss": ("GPT-OSS", {"num_local_experts": 4}),
    "bloom": ("BLOOM", {}),
    "mamba": ("Mamba", {}),
}
OWN_WIDTHS = {
    "gpt2": ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id"),
    "bloom": ("vocab_size", "hidden_size"),
    "mamba": ("vocab_size", "hidden_size", "num_hidden_layers"),
}
"""Entries of `WIDTHS` that a config has, if not all."""
LENGTHS = (3, 5, 9)
"""Tokens of the prompts."""
LONG = 100
"""Tokens of a prompt that is a neighbour of the others."""
POSITIONS = 128


@pytest.mark.slow("makes and loads a model for each row")
@pytest.mark.parametrize("kind", MODELS)
def test_a_row_of_the_table_is_what_happens(kind: str, tmp_path: Path) -> None:
    config = CONFIG_MAPPING[kind](**{key: WIDTHS[key] for key in OWN_WIDTHS.get(kind, WIDTHS)} | MODELS[kind][1])
    save_random(config, tmp_path)
    trained, sampled = trainer(tmp_path), engine(tmp_path, config)
    beside = [*["trainer"][: trained.startswith("yes")], *["engine"][: sampled.startswith("yes")]]
    if "trainer" in beside:
        trainer_beside_a_long_one(tmp_path)
    if "engine" in beside:
        engine_beside_a_long_one(tmp_path)
    row = f"| {MODELS[kind][0]} | `{kind}` | {trained} | {sampled} | {', '.join(beside) or '-'} |"
    assert table().get(kind) == row


def test_the_table_has_no_other_rows() -> None:
    assert list(table()) == list(MODELS)


def table() -> dict[str, str]:
    """Rows of the page by ``model_type``."""
    text = PAGE.read_text(encoding="utf-8")
    _, _, rows = text.partition("|---|---|---|---|---|\n")
    return {row.split(" | ")[1].strip("`"): row for row in rows.partition("\n\n")[0].splitlines()}


def save_random(config: Any, path: Path) -> None:
    """Save a model whose log-probs vary, unlike those of its own initialisation."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, weight.shape[-1] ** -0.5)
        model.get_output_embeddings().weight.normal_(0, 0.3)
    model.save_pretrained(path)


def trainer(path: Path) -> str:
    try:
        check_architecture(path, check_weights(path, "model.path"), "model.path")
    except ConfigError as error:
        return f"no: {cause(str(error))}"
    try:
        Policy(path, lora=Lora(rank=2))
    except ConfigError as error:
        return f"yes, {cause(str(error))}"
    return "yes"


def engine(path: Path, config: Any) -> str:
    model = AutoModelForCausalLM.from_pretrained(path)
    try:
        completions = asyncio.run(sample(model))
    except ConfigError as error:
        return f"no: {cause(str(error))}"
    if trainer(path).startswith("yes"):
        difference = (logprobs(path, completions) - sampled_logprobs(completions)).abs().max()
        assert sampled_logprobs(completions).std() > 1
        assert difference < 2e-5
    windowed = "sliding_attention" in (getattr(config, "layer_types", None) or ()) or (
        getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    )
    return "yes, *sliding*" if windowed else "yes"


def trainer_beside_a_long_one(path: Path) -> None:
    """Short trajectories have the log-probs in one row with a long one that each has alone."""
    policy, cpu = Policy(path), torch.device("cpu")
    ids = [np.array([(5 * n + place) % VOCAB for place in range(n)], np.int32) for n in LENGTHS]
    lengths = (*LENGTHS, LONG)
    told = [*ids, np.array([place % VOCAB for place in range(20)], np.int32)]
    pairs = zip(lengths, told, strict=True)
    every = [
        TrainingTrajectory(
            number, np.array(prompt(length), np.int32), completion, np.zeros(len(completion), np.float32), 0.0
        )
        for number, (length, completion) in enumerate(pairs)
    ]
    with torch.no_grad():
        alone = [policy.score(collate([one], device=cpu), temperature=1.0).logprobs for one in every]
        packed = policy.score(collate(every, device=cpu), temperature=1.0).logprobs
    assert (packed - torch.cat(alone)).abs().max() < 2e-5


def engine_beside_a_long_one(path: Path) -> None:
    """Short completions are the same beside one with a long prompt, which began before them, as without it."""
    alone = asyncio.run(sample(AutoModelForCausalLM.from_pretrained(path)))
    beside = asyncio.run(sample(AutoModelForCausalLM.from_pretrained(path), LONG))
    for one, other in zip(alone, beside, strict=True):
        assert one.completion_ids == other.completion_ids
    assert (sampled_logprobs(alone) - sampled_logprobs(beside)).abs().max() < 2e-5


async def sample(model: Any, *longer: int) -> list[Completion]:
    """Completions of prompts of `LENGTHS`, beside those of ``longer`` ones, which come first."""
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w0")
    engine = TransformersEngine(model, tokenizer, slots=len(longer) + len(LENGTHS), max_tokens_per_slot=POSITIONS)
    requests = [Request(prompt_ids=prompt(n), sampling=Sampling(max_tokens=20), seed=n) for n in (*longer, *LENGTHS)]
    completions = await asyncio.gather(*map(engine.generate, requests))
    await engine.aclose()
    return completions[len(longer) :]


def prompt(length: int) -> list[int]:
    return [3 + place % (VOCAB - 3) for place in range(length)]


def sampled_logprobs(completions: list[Completion]) -> torch.Tensor:
    return torch.cat([torch.tensor(one.behavior_logprobs) for one in completions])


def logprobs(path: Path, completions: list[Completion]) -> torch.Tensor:
    """Log-probs of the same tokens in the trainer, packed into one row."""
    trajectories = [
        TrainingTrajectory(
            number,
            np.array(prompt(length), np.int32),
            np.array(one.completion_ids, np.int32),
            np.array(one.behavior_logprobs, np.float32),
            0.0,
            [Span(0, 0, len(one.completion_ids))],
            0,
            {},
        )
        for number, (length, one) in enumerate(zip(LENGTHS, completions, strict=True))
    ]
    with torch.no_grad():
        return Policy(path).score(collate(trajectories, device=torch.device("cpu")), temperature=1.0).logprobs


CAUSES = {
    "no adapter fits": "without adapters",
    "more than a linear head": "scaled logits",
    "has no scaled_dot_product_attention": "its attention cannot be replaced",
    "outside of attention": "not attention alone",
    "['linear_attention']": "not attention alone",
    "does not keep its keys and values": "its cache has another shape",
}


def cause(message: str) -> str:
    return next(short for part, short in CAUSES.items() if part in message)
