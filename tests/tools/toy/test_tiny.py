"""A random model has the architecture that a recipe's model has, by its config or its published name."""

import tomllib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from asyncrl.config.model.directory import check_model
from asyncrl.data.prepare.published import DAPO_MATH, GSM8K
from asyncrl.data.prompts import train_stream
from asyncrl.errors import ConfigError
from asyncrl.tools.toy.models import tokenizer_from_texts
from asyncrl.tools.toy.tiny import NUM_ROWS, architecture_of, dataset_of, random_model, scaled, write_sample


@pytest.mark.parametrize(
    ("path", "architecture"),
    [
        ("models/Qwen3-8B", "qwen3"),
        ("/mnt/qwen3-0.6b-base", "qwen3"),
        ("models/Qwen3-30B-A3B-Instruct-2507", "qwen3_moe"),
        ("Qwen/Qwen2.5-3B-Instruct", "qwen2"),
        ("models/Qwen2.5-Math-7B", "qwen2"),
    ],
)
def test_a_published_name_tells_the_architecture(path: str, architecture: str) -> None:
    assert architecture_of(Path(path)) == architecture


def test_a_directory_tells_its_own(tmp_path: Path) -> None:
    model = tmp_path / "Qwen3-30B-A3B"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "qwen2"}')
    assert architecture_of(model) == "qwen2"
    (model / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(ConfigError, match="has model_type 'mamba'; --scale tiny makes models of qwen2, "):
        architecture_of(model)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.path=models/mine is not here, and its name is not a published one"):
        architecture_of(Path("models/mine"))


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "qwen3_moe"])
def test_a_model_is_a_function_of_its_seed(architecture: str) -> None:
    tokenizer = tokenizer_from_texts(["What is 1 + 1?"], 300)
    first, same, other = (random_model(architecture, tokenizer, seed) for seed in (1, 1, 2))
    assert first.config.model_type == architecture
    assert first.num_parameters() < 300_000
    ids = torch.arange(5)[None]
    with torch.no_grad():
        assert torch.equal(first(ids).logits, same(ids).logits)
        assert not torch.equal(first(ids).logits, other(ids).logits)


# ── test samples ──────────────────────────────────────────────────────────────────────────────
# Generated rows have the form of the dataset that the path names.


def test_a_folder_or_a_file_names_the_dataset() -> None:
    assert dataset_of(Path("data/gsm8k/train.parquet")) is GSM8K
    assert dataset_of(Path("/data/dapo-math.parquet")) is DAPO_MATH
    with pytest.raises(ConfigError, match=r"mine/train.parquet is not here, and no part of it names a dataset"):
        dataset_of(Path("mine/train.parquet"))


def test_rows_are_those_that_preparing_the_dataset_writes(tmp_path: Path) -> None:
    write_sample(GSM8K, tmp_path / "a" / "train.parquet", split="train", seed=0)
    rows = pq.read_table(tmp_path / "a" / "train.parquet").to_pylist()
    assert len(rows) == NUM_ROWS
    assert rows[3]["data_source"] == "openai/gsm8k"
    assert rows[3]["prompt"][0]["content"].endswith(GSM8K.instruction)
    assert rows[3]["reward_model"]["ground_truth"].isdigit()
    assert rows[3]["extra_info"]["index"] == 3


def test_other_splits_and_seeds_have_other_rows(tmp_path: Path) -> None:
    def answers(split: str, seed: int) -> list[str]:
        write_sample(GSM8K, tmp_path / "x.parquet", split=split, seed=seed)
        return [row["reward_model"]["ground_truth"] for row in pq.read_table(tmp_path / "x.parquet").to_pylist()]

    assert answers("train", 0) == answers("train", 0)
    assert answers("train", 0) != answers("held_out", 0)
    assert answers("train", 0) != answers("train", 1)


def test_some_prompts_are_too_long_if_asked_for(tmp_path: Path) -> None:
    write_sample(GSM8K, tmp_path / "x.parquet", split="train", seed=0, long_every=4)
    lengths = [len(row["prompt"][0]["content"]) for row in pq.read_table(tmp_path / "x.parquet").to_pylist()]
    assert [number for number, length in enumerate(lengths) if length > 1000] == list(range(3, NUM_ROWS, 4))


# ── test scale ────────────────────────────────────────────────────────────────────────────────
# A recipe at tiny scale keeps its options, and gets a model, data and sizes for a CPU.

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
