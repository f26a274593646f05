"""A plan whose numbers are known by hand, and a run file whose model is planned."""

from pathlib import Path

import pytest
from transformers import Qwen3Config

TOY = """
devices = 2
assumptions = ["every completion is as long as the next"]
[lengths]
median = 100
[rollout]
devices = 1
slots = 4
decode = [[1, 10]]
prefill_tokens_per_s = 1000
kv = "keep"
[trainer]
speeds = [{ devices = 1, tokens_per_s = 100 }]
[schedule]
groups_per_step = 2
group_size = 2
staleness = 1.0
[[measured]]
name = "the real one"
groups = 2
seconds = 12.5
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    path = tmp_path / "toy.toml"
    path.write_text(TOY)
    return path


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """A run file whose model has only a config.json."""
    Qwen3Config(
        vocab_size=1000, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, head_dim=16
    ).save_pretrained(tmp_path / "model")
    path = tmp_path / "small.toml"
    path.write_text(f'[model]\npath = "{tmp_path}/model"\n[data]\ntrain = "unused"\n[trainer]\nranks = 2\n')
    return path
