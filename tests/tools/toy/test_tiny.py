"""A recipe at tiny scale keeps its options, and gets a model, data, sizes and stand-ins for a CPU."""

import tomllib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from asyncrl.config.model.directory import check_model
from asyncrl.config.run_file import read_raw
from asyncrl.data.prepare.geo3k import GEO3K
from asyncrl.data.prepare.published import DAPO_MATH, GSM8K, MATH, PublishedDataset
from asyncrl.data.prompts import train_stream
from asyncrl.errors import ConfigError
from asyncrl.tools.published_data import dataset_of
from asyncrl.tools.toy import tiny_models
from asyncrl.tools.toy.tiny import LEAST_LR, NUM_ROWS, scaled, write_sample
from tests.cli.invoke import asyncrl

# ── test samples ──────────────────────────────────────────────────────────────────────────────
# Generated rows have the form of the dataset that the path names.


@pytest.mark.parametrize(
    ("path", "dataset"),
    [
        ("data/gsm8k/train.parquet", GSM8K),
        ("/home/me/data/rlhf/gsm8k_multiturn_w_tool/train.parquet", GSM8K),
        ("hf://datasets/openai/gsm8k:train", GSM8K),
        ("/data/dapo-math.parquet", DAPO_MATH),
        ("BytedTsinghua-SIA/DAPO-Math-17k/data/dapo-math-17k.parquet", DAPO_MATH),
        ("data/aime-2024.parquet", DAPO_MATH),
        ("data/AIME_2025/test.parquet", DAPO_MATH),
        ("data/math/train.parquet", MATH),
        ("math/data/geo3k/train.parquet", GEO3K),
        ("mine/train.parquet", None),
    ],
)
def test_a_folder_or_a_file_names_the_dataset(path: str, dataset: PublishedDataset | None) -> None:
    assert dataset_of(Path(path)) is dataset


def test_rows_are_those_that_preparing_the_dataset_writes(tmp_path: Path) -> None:
    write_sample(GSM8K, tmp_path / "a" / "train.parquet", split="train", seed=0)
    rows = pq.read_table(tmp_path / "a" / "train.parquet").to_pylist()
    assert len(rows) == NUM_ROWS
    assert rows[3]["data_source"] == "openai/gsm8k"
    assert rows[3]["prompt"][0]["content"].endswith(GSM8K.instruction)
    assert {row["reward_model"]["ground_truth"] for row in rows} == {"0", "1"}
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


@pytest.fixture(autouse=True)
def unfitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a model has learned plays no part here."""
    monkeypatch.setattr(tiny_models, "FIT_STEPS", 1)


def small(folder: Path, **sections: Any) -> tuple[Any, list[str]]:
    raw = tomllib.loads(RECIPE)
    for name, section in sections.items():
        raw.setdefault(name, {}).update(section)
    said: list[str] = []
    return scaled(raw, folder, said.append), said


def test_options_stay_and_sizes_shrink(tmp_path: Path) -> None:
    config, said = small(tmp_path)
    assert (config.schedule.staleness, config.algorithm.kl_coef) == (0.5, 0.001)
    assert config.trainer.lr == LEAST_LR  # at 3e-6 a tiny model would not move
    assert (config.schedule.groups_per_step, config.schedule.group_size) == (8, 2)
    assert (config.rollout.engine, config.rollout.replicas, config.trainer.ranks) == ("transformers", 2, 2)
    assert (config.trainer.device, config.weights.backend) == ("cpu", "auto")
    assert config.broker.bind == "tcp://127.0.0.1:0"
    assert config.trainer.warmup_steps == config.run.steps
    assert "scaled schedule.groups_per_step: 1024 -> 8" in said
    assert not any("group_size" in line or "staleness" in line for line in said)


def test_its_model_and_data_are_made_once(tmp_path: Path) -> None:
    config, said = small(tmp_path)
    check_model(config.model.path)
    assert train_stream(config.data, seed=0).at(0).prompt.data_source == "openai/gsm8k"
    before = Path(config.model.path, "model.safetensors").stat().st_mtime_ns
    again, _ = small(tmp_path)
    assert again == config
    assert Path(config.model.path, "model.safetensors").stat().st_mtime_ns == before
    assert sum(line.startswith("made ") for line in said) == 1


def test_data_that_is_here_is_used(tmp_path: Path) -> None:
    rows = tmp_path / "mine.jsonl"
    rows.write_text('{"prompt": "What is 2 + 3?", "answer": "5", "data_source": "openai/gsm8k"}\n' * 4)
    config, _ = small(tmp_path, data={"train": str(rows)})
    assert config.data.train == [str(rows)]


@pytest.mark.parametrize(
    ("columns", "source"),
    [
        ({}, "openai/gsm8k"),
        ({"image_column": ""}, "openai/gsm8k"),
        ({"image_column": "images"}, "hiyouga/geometry3k"),
    ],
)
def test_data_of_no_known_name_has_pictures_if_their_column_is_named(
    tmp_path: Path, columns: dict[str, str], source: str
) -> None:
    data = {"train": "data/clicks/train.parquet", "held_out": "data/clicks/test.parquet", **columns}
    config, said = small(tmp_path, data=data)
    assert train_stream(config.data, seed=0).at(0).prompt.data_source == source
    assert any(line.startswith("scaled data.train: data/clicks/train.parquet -> ") for line in said), said


def test_a_recipe_that_cannot_be_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown key"):
        small(tmp_path, trainer={"learning_rate": 1})


# ── test stand-ins ────────────────────────────────────────────────────────────────────────────
# What a launch names and this machine does not have is replaced, and each replacement is said.


def test_trackers_are_left_out_with_their_options(tmp_path: Path) -> None:
    config, said = small(tmp_path, trackers={"use": ["wandb"], "options": {"wandb": {"project": "mine"}}})
    assert (config.trackers.use, config.trackers.options) == ([], {})
    assert "scaled trackers.use: ['wandb'] -> []" in said


def test_a_critic_is_as_tiny_as_the_policy(tmp_path: Path) -> None:
    advantage = {"advantage": "gae"}
    config, _ = small(tmp_path, algorithm=advantage, critic={"path": "deepseek-ai/deepseek-llm-7b-chat"})
    assert config.critic.path == str(tmp_path / "llama-openai-gsm8k")
    assert config.critic.lr == LEAST_LR
    check_model(config.critic.path)


def test_rewards_that_are_not_here_are_those_of_the_rows(tmp_path: Path) -> None:
    config, said = small(tmp_path, reward={"function": "recipe/mine.py:compute_score", "options": {"scale": 2}})
    assert (config.reward.function, config.reward.options) == ("auto", {})
    assert "scaled reward.function: recipe/mine.py:compute_score -> auto" in said
    own = tmp_path / "mine.py"
    own.write_text("def score(inputs): return 1.0")
    config, said = small(tmp_path, reward={"function": f"{own}:score"})
    assert config.reward.function == f"{own}:score"


def test_served_models_stay_for_code_that_is_here(tmp_path: Path) -> None:
    judge = {"judge": {"url": "http://127.0.0.1:9/v1", "key_env": "JUDGE_KEY"}}
    config, _ = small(tmp_path, models=judge, reward={"function": "nowhere.py:score"})
    assert config.models == {}
    own = tmp_path / "mine.py"
    own.write_text("def score(inputs): return 1.0")
    config, _ = small(tmp_path, models=judge, reward={"function": f"{own}:score", "timeout_s": 60})
    assert list(config.models) == ["judge"]


def test_a_penalty_on_length_fits_the_shorter_completions(tmp_path: Path) -> None:
    penalty = {"name": "overlong", "function": "overlong", "options": {"max_tokens": 2000, "buffer": 500}}
    answer = {"name": "solved", "function": "nowhere.scores:judge", "correct": True}
    config, _ = small(tmp_path, sampling={"max_tokens": 2000}, reward={"parts": [answer, penalty]})
    assert config.sampling.max_tokens == 24
    assert [part.function for part in config.reward.parts] == ["auto", "overlong"]
    assert config.reward.parts[1].options == {"max_tokens": 24, "buffer": 6}


def test_tools_that_are_not_here_are_a_calculator(tmp_path: Path) -> None:
    config, said = small(tmp_path, environment={"tools": ["tools.py:search"], "tool_parser": "hermes"})
    assert (config.environment.tools, config.environment.tool_parser) == (["calculator"], "plain")
    assert config.model.path.endswith("-calls")
    assert "scaled environment.tools: ['tools.py:search'] -> ['calculator']" in said
    config, _ = small(tmp_path, environment={"function": "nowhere.py:Game", "options": {"level": 3}, "seats": 2})
    assert (config.environment.function, config.environment.options, config.environment.seats) == ("", {}, 1)
    assert config.environment.tools == ["calculator"]


def test_files_of_one_dataset_stay_several(tmp_path: Path) -> None:
    files = ["a/gsm8k/train.parquet", "b/gsm8k/train.parquet"]
    config, _ = small(tmp_path, data={"train": files, "ratios": [1, 3]})
    assert len(set(config.data.train)) == 2
    assert config.data.held_out == [str(tmp_path / "openai-gsm8k" / "held_out.parquet")]


def test_held_out_rows_that_no_name_tells_are_like_the_training_rows(tmp_path: Path) -> None:
    config, _ = small(tmp_path, data={"held_out": "data/test.parquet", "prompt_column": "question"})
    assert config.data.held_out == [str(tmp_path / "openai-gsm8k" / "held_out.parquet")]
    assert config.data.prompt_column == "prompt"


def test_a_narrow_rejection_lowers_the_learning_rate(tmp_path: Path) -> None:
    correction = {"mode": "decoupled", "rejection": "seq_mean_k1", "rejection_threshold": "0.999_1.001"}
    config, _ = small(tmp_path, algorithm={"correction": correction})
    assert config.trainer.lr == pytest.approx(LEAST_LR / 50, rel=0.01)
    correction["rejection_threshold"] = "0.6_1.6"
    config, _ = small(tmp_path, algorithm={"correction": correction})
    assert config.trainer.lr == LEAST_LR


def test_machines_and_windows_shrink_together(tmp_path: Path) -> None:
    schedule = {"groups_per_step": 128, "order": "windowed", "order_window": 256}
    machines = {"nodes": 4, "min_nodes": 2, "wait_s": 30, "ranks": 8, "shard_size": 16, "sequence_parallel": 4}
    config, _ = small(tmp_path, schedule=schedule, trainer=machines)
    assert config.schedule.order_window == 16
    trainer = config.trainer
    assert (trainer.nodes, trainer.ranks, trainer.shard_size, trainer.sequence_parallel) == (1, 2, 2, 2)


LAUNCH = (
    "algorithm.adv_estimator=gae",
    "data.train_files=/mnt/data/DAPO-Math-17k/dapo-math-17k.parquet",
    "data.val_files=['/mnt/data/aime-2024.parquet','/mnt/data/aime-2025.parquet']",
    "data.prompt_key=problem",
    "data.train_batch_size=512",
    "data.max_response_length=8192",
    "actor_rollout_ref.model.path=/mnt/models/DeepSeek-R1-Distill-Qwen-7B",
    "actor_rollout_ref.actor.ppo_mini_batch_size=128",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.n=1",
    "critic.model.path=deepseek-ai/deepseek-llm-7b-chat",
    "reward.custom_reward_function.path=recipe/mine.py",
    "reward.custom_reward_function.name=compute_score",
    "trainer.logger=['console','wandb','swanlab']",
    "trainer.project_name=mine",
    "trainer.n_gpus_per_node=8",
    "trainer.total_epochs=10",
)


def test_an_imported_launch_is_scaled_as_it_is_written(tmp_path: Path) -> None:
    result = asyncrl("import-verl", *LAUNCH, "-o", str(tmp_path / "run.toml"))
    assert result.exit_code == 0, result.stderr
    said: list[str] = []
    config = scaled(read_raw(tmp_path / "run.toml", ["run.steps=3"]), tmp_path, said.append)
    assert config.algorithm.advantage == "gae"
    assert config.schedule.groups_per_step == 16
    replaced = {line.partition(":")[0] for line in said}
    for key in ("trackers.use", "data.train", "data.held_out", "data.prompt_column", "model.path", "critic.path"):
        assert f"scaled {key}" in replaced
    assert config.reward.function == "auto"
