"""Overrides of config.json are merged, whichever form its rotary embeddings have."""

import pytest

from asyncrl.config.model.directory import check_overrides, merged
from asyncrl.errors import ConfigError

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
