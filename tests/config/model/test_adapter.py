"""Adapter directories are read by small files and headers; what would change the policy silently is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from asyncrl.config.model.adapter import adapter_config, check_adapter, layers_of, target_modules
from asyncrl.config.sections.trainer import Lora
from asyncrl.errors import ConfigError
from tests.config.model.directories import Shapes, write_safetensors

LAYER = "model.layers.0.self_attn.q_proj"
SHAPES: Shapes = {f"base_model.model.{LAYER}.lora_A.weight": (2, 4), f"base_model.model.{LAYER}.lora_B.weight": (6, 2)}


def written(path: Path, **changes: Any) -> Lora:
    """An adapter of rank 2 and alpha 4 in a directory, and the settings that start from it."""
    path.mkdir()
    lora = Lora(rank=2, path=str(path))
    config = adapter_config(lora, ["q_proj"], "org/base") | changes
    (path / "adapter_config.json").write_text(json.dumps(config))
    write_safetensors(path / "adapter_model.safetensors", SHAPES)
    return lora


def test_shapes_are_those_in_the_header(tmp_path: Path) -> None:
    assert check_adapter(written(tmp_path / "a")) == SHAPES


def test_an_alpha_of_0_is_twice_the_rank_in_both_directions(tmp_path: Path) -> None:
    assert adapter_config(Lora(rank=8), [], "base")["lora_alpha"] == 16
    assert adapter_config(Lora(rank=8, alpha=1.5), [], "base")["lora_alpha"] == 1.5
    check_adapter(written(tmp_path / "a", lora_alpha=4))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"r": 3}, "has r = 3 and lora_alpha = 4, but trainer.lora has rank 2 and alpha 4; set trainer.lora.rank = 3"),
        ({"lora_alpha": 5.5}, "has r = 2 and lora_alpha = 5.5, .* and trainer.lora.alpha = 5.5"),
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA', expected 'LORA'; merge the adapter"),
        ({"use_dora": True}, "use_dora is True, but only plain LoRA is trained; merge the adapter"),
        ({"use_rslora": True}, "use_rslora is True"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save is \['lm_head'\]"),
        ({"rank_pattern": {"q_proj": 1}}, "rank_pattern is"),
        ({"alpha_pattern": {"q_proj": 1}}, "alpha_pattern is"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is True"),
        ({"some_later_invention": 0.5}, "some_later_invention is 0.5"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa', which changed weights of the model too"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_all_but_plain_lora_of_the_same_scale_is_one_sentence(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    lora = written(tmp_path / "a", **changes)
    with pytest.raises(ConfigError, match=rf"^trainer\.lora\.path={lora.path}.*{sentence}") as refusal:
        check_adapter(lora)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"lora_dropout": 0.1, "layers_to_transform": [0], "target_modules": "all-linear", "task_type": None},
        {"megatron_core": "megatron.core", "qalora_group_size": 16, "loftq_config": {}, "arrow_config": None},
        {"init_lora_weights": "gaussian"},
    ],
)
def test_settings_that_change_nothing_about_given_tensors_are_accepted(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert check_adapter(written(tmp_path / "a", **changes)) == SHAPES


def test_incomplete_and_damaged_directories_are_one_sentence(tmp_path: Path) -> None:
    lora = written(tmp_path / "a")
    weights = tmp_path / "a" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ConfigError, match="is damaged: expected"):
        check_adapter(lora)
    weights.unlink()
    with pytest.raises(ConfigError, match=r"has no adapter_model\.safetensors"):
        check_adapter(lora)
    (tmp_path / "a" / "adapter_model.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match="a pickle, which is never read; load it with PEFT and save it again"):
        check_adapter(lora)
    (tmp_path / "a" / "adapter_config.json").write_text("[")
    with pytest.raises(ConfigError, match=r"adapter_config\.json is not a JSON object"):
        check_adapter(lora)
    with pytest.raises(ConfigError, match=r"is not an adapter directory \(no adapter_config\.json in it\)"):
        check_adapter(Lora(rank=2, path=str(tmp_path)))


def test_layers_are_named_once_and_in_order() -> None:
    assert layers_of(SHAPES) == [LAYER]


def test_last_names_are_targets_where_they_mean_the_adapted_layers_alone() -> None:
    layers = ["model.layers.0.q_proj", "model.layers.1.q_proj"]
    weights = [*(f"{layer}.weight" for layer in layers), "model.layers.0.q_proj.bias", "lm_head.weight"]
    assert target_modules(layers, weights) == ["q_proj"]
    assert target_modules(layers[:1], weights) == layers[:1]
    assert target_modules(layers, [*weights, "tower.q_proj.weight"]) == layers
