"""A model directory, the overrides of its config.json, and the names that a cache of the Hub tells."""

from pathlib import Path

import pytest

from asyncrl.config.model.directory import (
    HubSnapshot,
    check_model,
    check_overrides,
    known_positions,
    merged,
    snapshot_of,
)
from asyncrl.errors import ConfigError
from tests.config.model.directories import write_model, write_tokenizer


def test_a_whole_model_is_accepted(tmp_path: Path) -> None:
    check_model(str(write_model(tmp_path / "model")))


def test_the_tokenizer_is_compared_with_the_weights(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", vocabulary=22)
    write_tokenizer(model, 40)
    with pytest.raises(ConfigError, match="token ids up to 39, but the model knows 0 to 21"):
        check_model(str(model))


@pytest.mark.parametrize(
    ("path", "is_hub"),
    [("Qwen/Qwen3-0.6B", True), ("./model", False), ("model", False), ("a/b/c", False), ("/m", False)],
)
def test_owner_and_name_without_such_a_directory_is_a_name_on_the_hub(path: str, is_hub: bool) -> None:
    with pytest.raises(ConfigError) as refused:
        check_model(path)
    assert ("hf download" in str(refused.value)) == is_hub


def test_a_mistyped_directory_is_answered_with_the_model_beside_it(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    with pytest.raises(ConfigError, match=rf"; did you mean {tmp_path}/model\?$"):
        check_model(str(tmp_path / "modle"))


def test_an_adapter_is_told_from_a_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"^MODEL .* is a LoRA adapter, not a whole model: .* `asyncrl export RUN -o"):
        check_model(str(tmp_path), setting="MODEL")


def test_a_path_below_models_is_no_name_on_the_hub() -> None:
    with pytest.raises(ConfigError, match="hf download OWNER/Qwen3-8B --local-dir models/Qwen3-8B"):
        check_model("models/Qwen3-8B")


YARN = {"rope_type": "yarn", "factor": 8.0}


def test_values_are_replaced_and_tables_merged() -> None:
    config = {"vocab_size": 8, "text_config": {"hidden_size": 4, "max_position_embeddings": 64}}
    found = merged(config, {"text_config": {"max_position_embeddings": 128}, "use_cache": False})
    assert found == {
        "vocab_size": 8,
        "text_config": {"hidden_size": 4, "max_position_embeddings": 128},
        "use_cache": False,
    }
    assert config["text_config"] == {"hidden_size": 4, "max_position_embeddings": 64}


@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": 5.0, "rope_scaling": None},
        {"rope_theta": 5.0},
        {"rope_parameters": {"rope_theta": 5.0, "rope_type": "default"}},
        {"rope_theta": 5.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "overrides",
    [{"rope_scaling": {"type": "yarn", "factor": 8.0}}, {"rope_scaling": YARN}, {"rope_parameters": YARN}],
    ids=str,
)
def test_scaling_overrides_keep_the_base_in_every_form(config: dict[str, object], overrides: dict[str, object]) -> None:
    assert merged(config, overrides) == {"rope_parameters": {"rope_theta": 5.0, **YARN}}


def test_overrides_twice_are_overrides_once() -> None:
    overrides = {"rope_scaling": YARN, "max_position_embeddings": 128}
    once = merged({"rope_theta": 5.0, "max_position_embeddings": 64}, overrides)
    assert merged(once, overrides) == once


def test_a_key_that_another_setting_decides_is_refused() -> None:
    check_overrides({"max_position_embeddings": 128})
    with pytest.raises(ConfigError, match=r"^model\.overrides\.torch_dtype: set model\.dtype instead$"):
        check_overrides({"torch_dtype": "bfloat16"})


def test_a_path_in_the_cache_tells_name_commit_and_file() -> None:
    assert snapshot_of("/cache/models--org--a--b/snapshots/0123abc/") == HubSnapshot("org/a--b", "0123abc", "")
    assert snapshot_of("/cache/datasets--org--sums/snapshots/0123abc/data/train.parquet") == HubSnapshot(
        "org/sums", "0123abc", "data/train.parquet"
    )


def test_any_other_path_is_none() -> None:
    assert snapshot_of("/models/org--name") is None
    assert snapshot_of("/cache/models--org--name/refs/main") is None


@pytest.mark.parametrize(
    ("config", "overrides", "positions"),
    [
        ({"max_position_embeddings": 64}, {}, 64),
        ({"n_positions": 64}, {}, 64),
        ({}, {}, None),
        ({"max_position_embeddings": 64}, {"max_position_embeddings": 128}, 128),
        ({"max_position_embeddings": 64, "rope_scaling": {"type": "yarn", "factor": 4.0}}, {}, 256),
        ({"max_position_embeddings": 64}, {"rope_scaling": YARN | {"original_max_position_embeddings": 32}}, 256),
        ({"max_position_embeddings": 8, "text_config": {"max_position_embeddings": 64}}, {}, 64),
        ({"max_position_embeddings": 64, "rope_scaling": {"type": "yarn", "factor": "four"}}, {}, None),
    ],
)
def test_positions_are_known_without_transformers(
    config: dict[str, object], overrides: dict[str, object], positions: int | None
) -> None:
    assert known_positions(config, overrides) == positions
