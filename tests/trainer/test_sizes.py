from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig

from asyncrl.errors import ConfigError
from asyncrl.trainer.sizes import Sizes, measure, meta_model
from asyncrl.weights.contents.names import checkpoint_views, saved_tensors

SHAPE: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
HEAD = 101 * 16


def made(path: Path, config: Any) -> Any:
    config.save_pretrained(path)
    return meta_model(path, AutoModelForCausalLM, "model.path")


def sizes(model: Any, shards: int = 1, **options: bool) -> Sizes:
    return measure(model, model, checkpoint_views(model, saved_tensors(model)) or [], shards=shards, **options)


def test_a_model_has_its_root_and_equal_layers(tmp_path):
    model = made(tmp_path, Qwen3Config(**SHAPE))
    found = sizes(model)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert found.whole == found.trained == found.own == sum(parameter.numel() for parameter in model.parameters())
    assert (found.root, found.head_trained, found.parameter) == (2 * HEAD + 16, HEAD, HEAD)
    assert found.whole == found.root + 3 * found.layer


def test_a_rank_holds_as_many_rows_as_any_other(tmp_path):
    found = sizes(made(tmp_path, Qwen3Config(**SHAPE)), shards=2)
    embedding = (HEAD + 16) // 2
    assert found.own - 2 * embedding == (found.whole - 2 * HEAD) // 2, "of 101 rows the first rank holds 51"
    assert found.slice == embedding


def test_what_is_frozen_is_not_trained(tmp_path):
    model = made(tmp_path, Qwen3Config(**SHAPE)).requires_grad_(False)
    model.get_output_embeddings().weight.requires_grad_()
    found = sizes(model)
    assert (found.trained, found.root_trained, found.head_trained, found.layer_trained) == (HEAD, HEAD, HEAD, 0)


def test_experts_that_stay_are_of_no_layer_that_is_gathered(tmp_path):
    model = made(tmp_path, Qwen3MoeConfig(**SHAPE | EXPERTS))
    gathered, parallel = sizes(model), sizes(model, expert_parallel=True)
    assert gathered.layer - parallel.layer == 4 * (3 * 8 * 16), "gate, up and down of 4 experts"
    assert gathered.whole == parallel.whole


def test_a_config_that_no_model_can_be_made_by_is_one_sentence(tmp_path):
    made(tmp_path, Qwen3Config(**SHAPE))
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace('"hidden_act": "silu"', '"hidden_act": "unheard"'))
    with pytest.raises(ConfigError, match=r"model\.path=.*: no model can be made by its config"):
        meta_model(tmp_path, AutoModelForCausalLM, "model.path")


def test_a_meta_model_takes_options_of_its_config(tmp_path):
    Qwen3Config(**SHAPE).save_pretrained(tmp_path)
    model = meta_model(tmp_path, AutoModelForCausalLM, "model.path", num_hidden_layers=1)
    assert len(model.model.layers) == 1
    assert next(model.parameters()).dtype == torch.float32
