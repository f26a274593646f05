from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.utils import logging

from asyncrl.weights.contents.layout import TensorSpec
from asyncrl.weights.contents.names import are_views, checkpoint_specs, checkpoint_tensors

SIZES: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}

MODELS = {
    "tied": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=True)),
    "untied": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=False)),
    "experts": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **EXPERTS)),
}


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> None:
    logging.disable_progress_bar()


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    built: PreTrainedModel = MODELS[request.param]()
    return built


def loaded(path: Path) -> PreTrainedModel:
    read: PreTrainedModel = AutoModelForCausalLM.from_pretrained(path, local_files_only=True)
    return read


def test_names_and_values_are_those_of_the_saved_file(model: PreTrainedModel, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")

    for each in (model, loaded(tmp_path)):
        tensors = dict(checkpoint_tensors(each))
        assert tensors.keys() == saved.keys()
        assert all(torch.equal(tensors[name], saved[name]) for name in saved)


def test_a_model_without_weights_has_the_same_specs(model: PreTrainedModel, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(model.config)

    specs = checkpoint_specs(loaded(tmp_path), "bfloat16")
    assert specs == checkpoint_specs(empty, "bfloat16")
    assert specs == [
        TensorSpec(name=name, shape=tuple(tensor.shape), dtype="bfloat16") for name, tensor in checkpoint_tensors(model)
    ]


def test_names_do_not_depend_on_the_form_of_the_files(tmp_path: Path) -> None:
    """A folder may hold the experts fused, as transformers has them in memory."""
    model = MODELS["experts"]()
    model.save_pretrained(tmp_path, save_original_format=False)
    assert "model.layers.0.mlp.experts.gate_up_proj" in load_file(tmp_path / "model.safetensors")

    assert checkpoint_specs(loaded(tmp_path), "float32") == checkpoint_specs(model, "float32")


def test_tensors_are_the_models_own_and_not_copies(model: PreTrainedModel) -> None:
    assert are_views(model)
    for number, (_, tensor) in enumerate(checkpoint_tensors(model)):
        tensor.fill_(number)

    assert all((tensor == number).all() for number, (_, tensor) in enumerate(checkpoint_tensors(model)))
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    assert {tensor.untyped_storage().data_ptr() for _, tensor in checkpoint_tensors(model)} == own


def test_an_expert_is_called_as_if_it_were_a_module_of_its_own() -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in checkpoint_tensors(MODELS["experts"]())}

    assert len(shapes) == 45
    assert shapes["model.layers.1.mlp.experts.3.gate_proj.weight"] == (12, 16)
    assert shapes["model.layers.1.mlp.experts.3.down_proj.weight"] == (16, 12)


def test_other_modules_keep_their_parameter_names() -> None:
    assert [name for name, _ in checkpoint_tensors(nn.Linear(2, 3))] == ["weight", "bias"]
