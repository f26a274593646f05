"""A tiny model has the architecture that a recipe's model has, and writes answers that are right now and then."""

import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from asyncrl.config.run_file import decode
from asyncrl.errors import ConfigError
from asyncrl.messages.trajectory import Prompt
from asyncrl.reward.catalogue import resolve
from asyncrl.reward.verifier import VerifierInput
from asyncrl.runtime.memory import Room, plan_memory
from asyncrl.tools.toy.drawn_squares import VISION_WORDS
from asyncrl.tools.toy.models import save_model, tokenizer_from_texts
from asyncrl.tools.toy.tiny_models import FORMS, READ_PICTURES, architecture_of, completion, make, random_model
from tests.conftest import require_pictures


@pytest.mark.parametrize(
    ("path", "architecture"),
    [
        ("models/Qwen3-8B", "qwen3"),
        ("/mnt/qwen3-0.6b-base", "qwen3"),
        ("models/Qwen3-30B-A3B-Instruct-2507", "qwen3_moe"),
        ("Qwen/Qwen2.5-3B-Instruct", "qwen2"),
        ("hf://Qwen/Qwen2-7B@main", "qwen2"),
        ("models/Qwen2.5-Math-7B", "qwen2"),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2"),
        ("Qwen/Qwen1.5-MoE-A2.7B-Chat", "qwen2_moe"),
        ("hub/Qwen2.5-VL-7B-Instruct/snapshots/0a1b", "qwen2_5_vl"),
        ("models/Qwen3-VL-8B-Instruct", "qwen3_vl"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "qwen2"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "llama"),
        ("deepseek-ai/deepseek-llm-7b-chat", "llama"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama"),
        ("models/mine", "qwen3"),
    ],
)
def test_a_published_name_tells_the_architecture(path: str, architecture: str) -> None:
    assert architecture_of(path) == architecture


def test_a_name_that_tells_nothing_gets_a_model_for_its_rows() -> None:
    assert architecture_of("models/mine", has_pictures=True) == "qwen3_vl"


def test_a_directory_tells_its_own(tmp_path: Path) -> None:
    model = tmp_path / "Qwen3-30B-A3B"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "qwen2"}')
    assert architecture_of(str(model)) == "qwen2"


@pytest.mark.parametrize(
    ("architecture", "sentence"),
    [
        ("qwen3_vl_moe", "is not a causal language model"),
        ("gemma2", "more than a linear head"),
        ("mamba", "outside of attention"),
        ("mimo", "has no model of model_type 'mimo'"),
        ("encoder-decoder", "no tiny model of model_type 'encoder-decoder' is made"),
    ],
)
def test_an_architecture_that_is_not_trained_is_refused_before_it_is_fitted(architecture: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        random_model(architecture, tokenizer_from_texts(["What is 1 + 1?"], 300), 0)


KINDS = (
    "llama", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", *READ_PICTURES,
    "deepseek_v3", "exaone4", "gemma3", "gemma3_text", "glm4_moe", "gpt2", "hy_v3", "mistral", "phi3", "seed_oss",
)  # fmt: skip
"""Types of published recipes, and some whose config has other names for its sizes."""


@pytest.mark.parametrize("architecture", KINDS)
def test_a_model_is_a_function_of_its_seed(architecture: str) -> None:
    if architecture in READ_PICTURES:
        require_pictures()
    special = VISION_WORDS if architecture in READ_PICTURES else ()
    tokenizer = tokenizer_from_texts(["What is 1 + 1?"], 300, special)
    first, same, other = (random_model(architecture, tokenizer, seed).eval() for seed in (1, 1, 2))
    assert first.config.model_type == architecture
    assert first.num_parameters() < 500_000
    ids = torch.arange(5)[None]
    with torch.no_grad():
        assert torch.equal(first(ids).logits, same(ids).logits)
        assert not torch.equal(first(ids).logits, other(ids).logits)


@pytest.mark.parametrize("architecture", KINDS)
def test_a_dry_run_plans_the_memory_of_a_model_of_each_type(architecture: str, tmp_path: Path) -> None:
    if architecture in READ_PICTURES:
        require_pictures()
    special = VISION_WORDS if architecture in READ_PICTURES else ()
    tokenizer = tokenizer_from_texts(["What is 1 + 1?"], 300, special)
    save_model(tmp_path / "model", random_model(architecture, tokenizer, 0), tokenizer, lambda _: None)
    raw = {"run": {"steps": 1}, "model": {"path": str(tmp_path / "model")}, "data": {"train": "train.parquet"}}
    config = decode({**raw, "rollout": {"engine": "vllm"}, "trainer": {"device": "cpu"}})
    assert plan_memory(config, Room()).problem == ""


# ── test forms ────────────────────────────────────────────────────────────────────────────────
# A completion has the form that its verifier reads; chance decides whether it is right.


def is_right(verifier: str, text: str, answer: str) -> bool:
    found = cast(Mapping[str, Any], resolve(verifier)(VerifierInput(completion=text, answer=answer)))
    return bool(found.get("correct", found["score"]))


@pytest.mark.parametrize("verifier", FORMS)
def test_a_verifier_finds_the_answer_of_a_completion(verifier: str) -> None:
    for answer, other in (("0", "1"), ("1", "0")):
        text = completion([verifier], [answer], random.Random(0))
        assert is_right(verifier, text, answer)
        assert not is_right(verifier, text, other)


@pytest.mark.parametrize("verifier", FORMS)
def test_a_completion_for_several_verifiers_is_right_for_each(verifier: str) -> None:
    assert is_right(verifier, completion(list(FORMS), ["1"], random.Random(0)), "1")


def test_some_completions_call_a_tool_if_there_is_one() -> None:
    rng = random.Random(0)
    assert {"calculator" in completion(["gsm8k"], ["1"], rng, may_call=True) for _ in range(20)} == {True, False}
    assert not any("calculator" in completion(["gsm8k"], ["1"], rng) for _ in range(20))


@pytest.mark.slow("fits a model for a few seconds")
def test_rewards_of_a_fitted_model_differ_within_groups(tmp_path: Path) -> None:
    prompts = [Prompt(chat=[{"role": "user", "content": f"Is {n} odd?"}], answer=str(n % 2)) for n in range(16)]
    make(tmp_path / "model", "qwen3", prompts, ["gsm8k"], seed=0, may_call=False, report=lambda _: None)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    text = tokenizer.apply_chat_template(prompts[0].chat, add_generation_prompt=True, tokenize=False)
    ids = tokenizer([text], return_tensors="pt").input_ids.repeat(64, 1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sampled = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, max_new_tokens=24)
    texts = tokenizer.batch_decode(sampled[:, ids.shape[1] :], skip_special_tokens=True)
    rewards = [is_right("gsm8k", text, prompts[0].answer) for text in texts]
    groups = [set(rewards[start : start + 4]) for start in range(0, 64, 4)]
    assert sum(len(group) == 2 for group in groups) >= 8
