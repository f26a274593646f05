"""One reading of a model's architecture, with overrides, for trainer and engines."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from transformers import LlamaConfig, Qwen3Config, Qwen3VLConfig

from asyncrl.errors import ConfigError
from asyncrl.weights.contents.architecture import check_positions, config_changes, num_positions, read_config

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Qwen3Config(max_position_embeddings=64, rope_theta=5e5).save_pretrained(tmp_path)
    return tmp_path


def test_without_overrides_the_config_is_that_of_the_directory(path: Path) -> None:
    assert read_config(path).max_position_embeddings == 64
    assert config_changes(path, {}) == {}


def test_an_override_is_read_and_the_rest_stays(path: Path) -> None:
    overrides = {"max_position_embeddings": 256, "attention_dropout": 0.25}
    assert config_changes(path, overrides) == overrides
    config: Any = read_config(path, overrides)
    assert (config.max_position_embeddings, config.rope_parameters["rope_theta"]) == (256, 5e5)


@pytest.mark.parametrize("old", [False, True])
def test_scaled_rotary_embeddings_keep_their_base(path: Path, old: bool) -> None:
    if old:
        said = msgspec.json.decode((path / "config.json").read_bytes())
        del said["rope_parameters"]
        (path / "config.json").write_bytes(msgspec.json.encode(said | {"rope_theta": 5e5, "rope_scaling": None}))
    assert config_changes(path, {"rope_scaling": YARN}) == {"rope_parameters": {"rope_theta": 5e5, **YARN}}


def test_a_saved_config_with_its_overrides_is_read_with_them_again(path: Path, tmp_path: Path) -> None:
    overrides = {"max_position_embeddings": 256, "rope_scaling": YARN}
    read_config(path, overrides).save_pretrained(tmp_path / "checkpoint")
    assert config_changes(tmp_path / "checkpoint", overrides) == {}


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"max_positions_embeddings": 8}, "no such setting; did you mean 'max_position_embeddings'?"),
        ({"qqq": 8}, "no such setting; see its config.json"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "model.overrides is not valid for"),
        ({"hidden_size": "many"}, "model.overrides is not valid for"),
    ],
    ids=str,
)
def test_an_override_that_the_model_cannot_take_is_one_sentence(
    path: Path, overrides: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read_config(path, overrides)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_name_of_another_family_for_the_same_setting_is_known(tmp_path: Path) -> None:
    LlamaConfig(max_position_embeddings=64).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="has no such setting"):
        read_config(tmp_path, {"n_positions": 8})


@pytest.mark.parametrize(
    ("settings", "longest"),
    [
        ({}, 64),
        ({"rope_parameters": {"rope_theta": 1e4, **YARN}}, 256),
        ({"rope_parameters": {"rope_theta": 1e4, **YARN}, "max_position_embeddings": 300}, 300),
        ({"max_position_embeddings": None}, None),
    ],
    ids=str,
)
def test_positions_are_those_of_scaled_rotary_embeddings(settings: dict[str, Any], longest: int | None) -> None:
    config = SimpleNamespace(**({"max_position_embeddings": 64} | settings))
    assert num_positions(config) == longest


def test_too_few_positions_are_one_sentence_with_two_remedies() -> None:
    check_positions(SimpleNamespace(max_position_embeddings=64), 64)
    with pytest.raises(
        ConfigError, match=r"holds 65 tokens .* knows 64 .*, or set model\.overrides\.max_position_embe"
    ):
        check_positions(SimpleNamespace(max_position_embeddings=64), 65)


def test_the_language_model_of_one_that_reads_pictures_is_overridden_in_its_table(tmp_path: Path) -> None:
    Qwen3VLConfig().save_pretrained(tmp_path)
    overrides = {"text_config": {"max_position_embeddings": 1234}}
    assert config_changes(tmp_path, overrides) == overrides
    assert read_config(tmp_path, overrides).get_text_config().max_position_embeddings == 1234
    with pytest.raises(ConfigError, match=r"did you mean 'text_config\.max_position_embeddings'"):
        read_config(tmp_path, overrides["text_config"])
