"""Facts about a model directory, read without loading weights. Needs no vLLM."""

import json

import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from asyncrl.errors import ConfigError
from asyncrl.rollout.engines import limits
from asyncrl.rollout.engines.vllm.checkpoint import read
from asyncrl.weights.contents.token_ids import load_tokenizer
from tests.conftest import BEYOND_TOKENIZER, make_vision_model
from tests.rollout.engines import vision_models


def test_specs_equal_those_of_the_loaded_model(make_model, tokenizer, tmp_path):
    model = make_model("qwen3")
    model.save_pretrained(tmp_path)

    found = read(str(tmp_path), tokenizer, "float32")

    assert found.specs == limits.specs(model)
    assert all("lm_head" not in spec.name for spec in found.specs)  # tied
    assert found.token_ids.vocab_size == 64


def test_the_dtype_is_that_of_the_transfer(make_model, tokenizer, tmp_path):
    make_model("qwen3").save_pretrained(tmp_path)

    assert {spec.dtype for spec in read(str(tmp_path), tokenizer, "bfloat16").specs} == {"bfloat16"}


def test_experts_are_separate_as_in_a_checkpoint(tokenizer, tmp_path):
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 16, "moe_intermediate_size": 8, "head_dim": 8}
    heads = {
        "num_hidden_layers": 2,
        "mlp_only_layers": [0],
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_experts": 3,
    }
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **heads, num_experts_per_tok=2)).save_pretrained(tmp_path)

    found = read(str(tmp_path), tokenizer, "float32")
    shapes = {spec.name: spec.shape for spec in found.specs}

    assert shapes["model.layers.1.mlp.experts.2.down_proj.weight"] == (16, 8)
    assert shapes["model.layers.1.mlp.experts.0.gate_proj.weight"] == (8, 16)
    assert found.expert_layers == [1]


def test_every_source_of_end_tokens_counts(make_model, tokenizer, tmp_path):
    make_model("qwen3").save_pretrained(tmp_path)
    assert read(str(tmp_path), tokenizer, "float32").token_ids.ends == (0,)

    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 7]}))
    assert read(str(tmp_path), tokenizer, "float32").token_ids.ends == (0, 5, 7)

    (tmp_path / "generation_config.json").unlink()
    assert read(str(tmp_path), tokenizer, "float32").token_ids.ends == (0,)


def test_a_directory_without_a_model_is_refused_by_its_name(tokenizer, tmp_path):
    with pytest.raises(ConfigError, match=str(tmp_path)):
        read(str(tmp_path), tokenizer, "float32")


@pytest.mark.parametrize("family", vision_models.FAMILIES)
def test_a_model_that_reads_pictures_has_the_specs_of_its_vision_tower(tmp_path, family):
    make_vision_model(tmp_path, family)
    model, _ = vision_models.load(tmp_path)

    found = read(str(tmp_path), load_tokenizer(str(tmp_path)), "float32")

    assert found.specs == limits.specs(model)
    assert any(".visual." in f".{spec.name}" for spec in found.specs)
    assert found.without_probability == list(BEYOND_TOKENIZER)
