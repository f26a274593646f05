"""
The recipes are what `asyncrl import-verl` makes of launches with the published values.

Launches are written here with verl's names; only what a launch does not say is compared with an exception.
"""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from asyncrl.config.run_file import decode
from asyncrl.tools.verl.launch import Launch
from asyncrl.tools.verl.overrides import given, parse_override
from asyncrl.tools.verl.trainers import Mode
from asyncrl.tools.verl.translate import translate
from tests.conf.recipes.claims import settings

RECIPES = Path("conf/recipes").resolve()

TRAINED = (
    "algorithm.adv_estimator=grpo",
    "data.filter_overlong_prompts=True",
    "actor_rollout_ref.model.enable_gradient_checkpointing=True",
    "actor_rollout_ref.rollout.name=vllm",
    "trainer.nnodes=1",
    "rollout.nnodes=1",
)
WITH_KL = (
    "actor_rollout_ref.actor.use_kl_loss=True",
    "actor_rollout_ref.actor.kl_loss_type=low_var_kl",
    "algorithm.use_kl_in_reward=False",
)
GSM8K = (
    *TRAINED,
    *WITH_KL,
    "data.train_files=data/gsm8k/train.parquet",
    "data.val_files=data/gsm8k/test.parquet",
    "data.max_prompt_length=512",
    "data.max_response_length=1024",
    "data.train_batch_size=1024",
    "actor_rollout_ref.actor.ppo_mini_batch_size=256",
    "actor_rollout_ref.actor.kl_loss_coef=0.001",
    "actor_rollout_ref.ref.fsdp_config.param_offload=True",
    "actor_rollout_ref.rollout.n=5",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.6",
    "trainer.total_epochs=15",
)
GEO3K = (
    *TRAINED,
    *WITH_KL,
    "data.train_files=data/geo3k/train.parquet",
    "data.val_files=data/geo3k/test.parquet",
    "data.image_key=images",
    "data.max_prompt_length=1024",
    "data.max_response_length=2048",
    "actor_rollout_ref.model.path=models/Qwen3-VL-8B-Instruct",
    "actor_rollout_ref.actor.optim.lr=1e-6",
    "actor_rollout_ref.actor.use_dynamic_bsz=True",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384",
    "actor_rollout_ref.actor.kl_loss_coef=0.01",
    "actor_rollout_ref.rollout.n=5",
    "+actor_rollout_ref.rollout.engine_kwargs.vllm.mm_processor_cache_gb=0",
    "trainer.device=npu",
)
DAPO = (
    *TRAINED[:1],
    *TRAINED[2:],
    "data.train_files=data/dapo-math/train.parquet",
    "data.val_files=data/aime-2024/test.parquet",
    "data.max_prompt_length=2048",
    "data.max_response_length=6144",
    "data.truncation=left",
    "actor_rollout_ref.model.path=models/Qwen3-30B-A3B",
    "actor_rollout_ref.nccl_timeout=7200",
    "actor_rollout_ref.actor.optim.lr=1e-6",
    "actor_rollout_ref.actor.optim.lr_warmup_steps=10",
    "actor_rollout_ref.actor.optim.weight_decay=0.1",
    "actor_rollout_ref.actor.grad_clip=1.0",
    "actor_rollout_ref.actor.use_dynamic_bsz=True",
    "actor_rollout_ref.actor.clip_ratio_low=0.2",
    "actor_rollout_ref.actor.clip_ratio_high=0.28",
    "actor_rollout_ref.actor.clip_ratio_c=10.0",
    "actor_rollout_ref.actor.loss_agg_mode=token-mean",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
    "actor_rollout_ref.rollout.enable_chunked_prefill=True",
    "actor_rollout_ref.rollout.val_kwargs.temperature=1.0",
    "actor_rollout_ref.rollout.val_kwargs.top_p=0.7",
    "actor_rollout_ref.rollout.val_kwargs.do_sample=True",
    "trainer.device=npu",
    "trainer.val_before_train=False",
    "trainer.save_freq=50",
    "trainer.n_gpus_per_node=16",
)
LAUNCHES: dict[str, tuple[Mode, tuple[str, ...]]] = {
    "gsm8k-qwen2.5-3b-one-step-off": (
        "one_step_off",
        (
            *GSM8K,
            "actor_rollout_ref.model.path=models/Qwen2.5-3B-Instruct",
            "actor_rollout_ref.actor.optim.lr=3e-6",
            "data.shuffle=False",
            "trainer.test_freq=-1",
            "algorithm.rollout_correction.bypass_mode=False",
            "trainer.n_gpus_per_node=4",
            "rollout.n_gpus_per_node=4",
        ),
    ),
    "gsm8k-qwen3-8b-grpo": (
        "synchronous",
        (
            *GSM8K,
            "actor_rollout_ref.model.path=models/Qwen3-8B",
            "actor_rollout_ref.actor.optim.lr=1e-6",
            "trainer.test_freq=5",
            "trainer.save_freq=20",
            "trainer.n_gpus_per_node=8",
        ),
    ),
    "geo3k-qwen3-vl-8b-npu": (
        "fully_async",
        (
            *GEO3K,
            "data.shuffle=False",
            "trainer.test_freq=5",
            "actor_rollout_ref.actor.ppo_mini_batch_size=64",
            "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
            "actor_rollout_ref.rollout.gpu_memory_utilization=0.8",
            "actor_rollout_ref.rollout.max_num_batched_tokens=32768",
            "algorithm.rollout_correction.bypass_mode=False",
            "algorithm.rollout_correction.rollout_is=sequence",
            "algorithm.rollout_correction.rollout_is_threshold=2.0",
            "algorithm.rollout_correction.rollout_is_batch_normalize=True",
            "algorithm.rollout_correction.rollout_rs=seq_mean_k1",
            "algorithm.rollout_correction.rollout_rs_threshold=0.999_1.001",
            "async_training.staleness_threshold=10",
            "async_training.trigger_parameter_sync_step=5",
            "async_training.require_batches=2",
            "rollout.total_rollout_steps=51200",
            "async_training.partial_rollout=True",
            "trainer.val_before_train=False",
            "trainer.n_gpus_per_node=16",
            "rollout.n_gpus_per_node=16",
        ),
    ),
    "geo3k-qwen3-vl-8b-sync-npu": (
        "synchronous",
        (
            *GEO3K,
            "data.train_batch_size=512",
            "actor_rollout_ref.actor.ppo_mini_batch_size=32",
            "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean",
            "trainer.total_epochs=1",
            "actor_rollout_ref.rollout.tensor_model_parallel_size=4",
            "actor_rollout_ref.rollout.gpu_memory_utilization=0.6",
            "actor_rollout_ref.rollout.enforce_eager=True",
            "actor_rollout_ref.ref.fsdp_config.param_offload=True",
            "trainer.test_freq=10",
            "trainer.save_freq=25",
            "trainer.n_gpus_per_node=8",
        ),
    ),
    "dapo-qwen3-30b-a3b-npu": (
        "fully_async",
        (
            *DAPO,
            "+actor_rollout_ref.model.override_config.max_position_embeddings=32768",
            "actor_rollout_ref.actor.ppo_mini_batch_size=16",
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096",
            "actor_rollout_ref.actor.ulysses_sequence_parallel_size=8",
            "actor_rollout_ref.rollout.n=4",
            "actor_rollout_ref.rollout.max_num_seqs=128",
            "actor_rollout_ref.rollout.gpu_memory_utilization=0.7",
            "actor_rollout_ref.rollout.max_num_batched_tokens=8192",
            "+actor_rollout_ref.rollout.engine_kwargs.vllm.enable_expert_parallel=True",
            "async_training.staleness_threshold=0.75",
            "async_training.trigger_parameter_sync_step=2",
            "async_training.partial_rollout=True",
            "rollout.total_rollout_steps=3200",
            "trainer.test_freq=25",
            "rollout.n_gpus_per_node=16",
        ),
    ),
    "dapo-qwen3-30b-a3b-sync-npu": (
        "synchronous",
        (
            *DAPO,
            "data.train_batch_size=32",
            "actor_rollout_ref.actor.ppo_mini_batch_size=32",
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384",
            "actor_rollout_ref.actor.fsdp_config.param_offload=True",
            "actor_rollout_ref.actor.fsdp_config.optimizer_offload=True",
            "actor_rollout_ref.rollout.n=16",
            "actor_rollout_ref.rollout.max_num_seqs=1024",
            "actor_rollout_ref.rollout.gpu_memory_utilization=0.9",
            "actor_rollout_ref.rollout.max_num_batched_tokens=32768",
            "reward.reward_manager.name=dapo",
            "+reward.reward_kwargs.overlong_buffer_cfg.enable=True",
            "+reward.reward_kwargs.overlong_buffer_cfg.len=4096",
            "+reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0",
            "+reward.reward_kwargs.max_resp_len=6144",
            "trainer.test_freq=200",
            "trainer.total_training_steps=100",
        ),
    ),
}

NOT_SAID = {"weights.backend", "trainer.max_tokens_per_micro_batch"}
"""Settings that a launch does not say."""
OURS = {
    "dapo-qwen3-30b-a3b-sync-npu": {
        "rollout.replicas",  # of four NPUs
        "rollout.vllm.tensor_parallel_size",
        "schedule.filter",  # of the trainer that the published script starts
        "schedule.filter_metric",
        "schedule.filter_patience",
        "reward.parts",  # the name of one
    },
}
"""Settings whose value a recipe says is not the launch's, or whose words are not."""


def leaf(values: Any, key: str) -> Any:
    for name in key.split("."):
        values = getattr(values, name)
    return values


def same(imported: Any, written: Any) -> bool:
    """A threshold may be a text or a number."""
    return imported == written or str(imported) == str(written)


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_launch_with_the_published_values_becomes_the_recipe(name: str) -> None:
    mode, options = LAUNCHES[name]
    translation = translate(Launch(mode, given([parse_override(option) for option in options])))
    assert translation.verdict == "runs", translation.toml
    imported = decode(tomllib.loads(translation.toml))
    raw = tomllib.loads((RECIPES / f"{name}.toml").read_text(encoding="utf-8"))
    recipe = decode(raw)
    different = {
        key: (leaf(imported, key), leaf(recipe, key))
        for key in settings(raw)
        if key not in NOT_SAID | OURS.get(name, set()) and not same(leaf(imported, key), leaf(recipe, key))
    }
    assert different == {}


def test_every_recipe_has_a_launch() -> None:
    assert LAUNCHES.keys() == {path.stem for path in RECIPES.glob("*.toml")}
