"""A recipe at tiny scale keeps its options, and gets a model, data and sizes for a CPU."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from asyncrl.config.model.directory import check_model
from asyncrl.data.prompts import train_stream
from asyncrl.errors import ConfigError
from asyncrl.toy.tiny.scale import scaled

RECIPE = """
[run]
steps = 3
[model]
path = "models/Qwen3-8B"
dtype = "bfloat16"
[data]
train = "data/gsm8k/train.parquet"
held_out = ["data/gsm8k/test.parquet"]
[schedule]
groups_per_step = 1024
group_size = 2
staleness = 0.5
[rollout]
engine = "vllm"
replicas = 8
[rollout.vllm]
tensor_parallel_size = 2
[algorithm]
kl_coef = 0.001
[trainer]
device = "npu"
ranks = 16
warmup_steps = 10
lr = 3e-6
[weights]
backend = "hccl"
[broker]
bind = "tcp://10.0.0.1:5570"
"""


def small(folder: Path, **sections: Any) -> tuple[Any, list[str]]:
    raw = tomllib.loads(RECIPE)
    for name, section in sections.items():
        raw[name] |= section
    said: list[str] = []
    return scaled(raw, folder, said.append), said


def test_options_stay_and_sizes_shrink(tmp_path: Path) -> None:
    config, said = small(tmp_path)
    assert (config.schedule.staleness, config.algorithm.kl_coef, config.trainer.lr) == (0.5, 0.001, 3e-6)
    assert (config.schedule.groups_per_step, config.schedule.group_size) == (4, 2)
    assert (config.rollout.engine, config.rollout.replicas, config.trainer.ranks) == ("transformers", 2, 2)
    assert (config.trainer.device, config.weights.backend) == ("cpu", "auto")
    assert config.broker.bind == "tcp://127.0.0.1:0"
    assert config.trainer.warmup_steps == config.run.steps
    assert "scaled schedule.groups_per_step: 1024 -> 4" in said
    assert not any("group_size" in line or "staleness" in line for line in said)


def test_its_model_and_data_are_made_once(tmp_path: Path) -> None:
    config, said = small(tmp_path)
    check_model(config.model.path)
    assert train_stream(config.data, seed=0).at(0).prompt.data_source == "openai/gsm8k"
    before = Path(config.model.path, "model.safetensors").stat().st_mtime_ns
    again, _ = small(tmp_path)
    assert again == config
    assert Path(config.model.path, "model.safetensors").stat().st_mtime_ns == before
    assert said[0].startswith("made ")


def test_data_that_is_here_is_used(tmp_path: Path) -> None:
    rows = tmp_path / "mine.jsonl"
    rows.write_text('{"prompt": "What is 2 + 3?", "answer": "5", "data_source": "openai/gsm8k"}\n' * 4)
    config, _ = small(tmp_path, data={"train": str(rows)})
    assert config.data.train == [str(rows)]


def test_a_recipe_that_cannot_be_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown key"):
        small(tmp_path, trainer={"learning_rate": 1})
    with pytest.raises(ConfigError, match=r"names a dataset that --scale tiny can imitate"):
        small(tmp_path, data={"train": "data/mine.parquet"})
