import json
from pathlib import Path
from typing import Any

import pytest

from asyncrl.config.model.tokenizer import num_experts
from asyncrl.errors import ConfigError


@pytest.mark.parametrize(
    ("config", "number"),
    [
        ({"num_experts": 128}, 128),
        ({"num_local_experts": 8}, 8),
        ({"text_config": {"n_routed_experts": 64}}, 64),
        ({"text_config": {"hidden_size": 8}, "num_experts": None}, 0),
        ({"num_experts": 1}, 0),
        ({"hidden_size": 8}, 0),
    ],
)
def test_each_family_says_it_by_its_own_name(tmp_path: Path, config: dict[str, Any], number: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert num_experts(tmp_path) == number


def test_a_missing_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        num_experts(tmp_path)
