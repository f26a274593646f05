"""Devices, parallelism and memory: FSDP2 and sequence parallel ranks take the place of Megatron's dimensions."""

from typing import Any

import pytest

from asyncrl.tools.verl.launch import Mode
from tests.tools.verl.launches import fate, settings

A, MEGATRON = "actor_rollout_ref.actor", "actor_rollout_ref.actor.megatron"
LENGTHS = ("data.max_prompt_length=1024", "data.max_response_length=7168")


def trainer(*options: str, mode: Mode = "fully_async", is_megatron: bool = False) -> dict[str, Any]:
    found = settings(mode, *LENGTHS, *options, is_megatron=is_megatron)
    return {key.removeprefix("trainer."): value for key, value in found.items() if key.startswith("trainer.")}


def test_each_machine_has_the_rollouts_that_its_devices_are_enough_for() -> None:
    found = settings(
        "fully_async",
        "trainer.nnodes=2",
        "trainer.n_gpus_per_node=16",
        "rollout.nnodes=3",
        "rollout.n_gpus_per_node=8",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=4",
        "trainer.device=npu",
    )
    assert (found["trainer.nodes"], found["trainer.ranks"], found["trainer.device"]) == (2, 16, "npu")
    assert (found["rollout.replicas"], found["rollout.device"]) == (2, "npu")
    assert found["rollout.vllm.tensor_parallel_size"] == 4


def test_main_ppo_shares_the_devices_of_one_machine() -> None:
    found = settings("synchronous", "trainer.n_gpus_per_node=8")
    assert found["rollout.colocated"] is True
    assert found["rollout.replicas"] == 4


def test_of_several_machines_that_share_devices_half_train_and_half_sample() -> None:
    found = settings("synchronous", "trainer.nnodes=4")
    assert "rollout.colocated" not in found
    assert (found["trainer.nodes"], found["rollout.replicas"]) == (2, 4)
    assert fate("synchronous", "trainer.nnodes=4")[0] == "substituted"


def test_ulysses_ranks_share_a_row_with_as_many_tokens_each() -> None:
    found = trainer(
        f"{A}.ulysses_sequence_parallel_size=4", f"{A}.use_dynamic_bsz=True", f"{A}.ppo_max_token_len_per_gpu=4096"
    )
    assert (found["sequence_parallel"], found["max_tokens_per_micro_batch"]) == (4, 4096)


def test_ranks_that_share_a_row_are_of_one_machine() -> None:
    option = f"{A}.ulysses_sequence_parallel_size=4"
    found = trainer(
        option, "trainer.n_gpus_per_node=6", f"{A}.use_dynamic_bsz=True", f"{A}.ppo_max_token_len_per_gpu=8192"
    )
    assert (found["sequence_parallel"], found["max_tokens_per_micro_batch"]) == (2, 8192)
    assert fate("fully_async", option, "trainer.n_gpus_per_node=6")[0] == "substituted"


def test_the_longest_trajectory_fits_into_the_budget() -> None:
    found = trainer(f"{A}.use_dynamic_bsz=True", f"{A}.ppo_max_token_len_per_gpu=4096")
    assert found["max_tokens_per_micro_batch"] == 8192


def test_without_dynamic_batches_the_budget_is_of_whole_trajectories() -> None:
    assert trainer(f"{A}.ppo_micro_batch_size_per_gpu=2")["max_tokens_per_micro_batch"] == 2 * 8192


def test_ranks_of_tensor_and_context_parallelism_share_each_row() -> None:
    options = (f"{MEGATRON}.tensor_model_parallel_size=2", f"{MEGATRON}.context_parallel_size=2")
    budget = (f"{A}.use_dynamic_bsz=True", f"{A}.ppo_max_token_len_per_gpu=8192")
    found = trainer(*options, *budget, is_megatron=True)
    assert (found["sequence_parallel"], found["max_tokens_per_micro_batch"]) == (4, 4096)
    assert fate("fully_async", options[0], is_megatron=True)[0] == "substituted"


def test_pipeline_parallelism_is_replaced_by_shards() -> None:
    assert fate("fully_async", f"{MEGATRON}.pipeline_model_parallel_size=2")[0] == "substituted"
    assert fate("fully_async", f"{MEGATRON}.pipeline_model_parallel_size=1")[0] == "not needed"


@pytest.mark.parametrize(("size", "shard"), [(2, 2), (-1, None), (16, None), (3, None)])
def test_a_shard_size_that_divides_the_ranks_is_kept(size: int, shard: int | None) -> None:
    assert trainer(f"{A}.fsdp_config.fsdp_size={size}", "trainer.n_gpus_per_node=16").get("shard_size") == shard


def test_experts_are_spread_over_a_power_of_two_of_ranks() -> None:
    found = trainer(f"{MEGATRON}.expert_model_parallel_size=8", "trainer.nnodes=12", is_megatron=True)
    assert (found["expert_parallel"], found["shard_size"]) == (True, 32)


def test_experts_on_the_host_are_gathered_instead() -> None:
    options = (f"{MEGATRON}.expert_model_parallel_size=8", f"{MEGATRON}.param_offload=True")
    assert "expert_parallel" not in trainer(*options, is_megatron=True)
    assert fate("fully_async", *options, is_megatron=True)[0] == "substituted"


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ((f"{A}.fsdp_config.param_offload=True", f"{A}.fsdp_config.optimizer_offload=True"), ["parameters"]),
        ((f"{A}.fsdp_config.optimizer_offload=True",), ["moments"]),
        (("actor_rollout_ref.model.enable_activation_offload=True",), ["activations"]),
        (("actor_rollout_ref.ref.fsdp_config.param_offload=True",), None),
        (("actor_rollout_ref.ref.fsdp_config.param_offload=True", f"{A}.use_kl_loss=True"), ["reference"]),
    ],
)
def test_what_verl_keeps_on_the_host_is_there(options: tuple[str, ...], parts: list[str] | None) -> None:
    assert trainer(*options).get("offload") == parts


def test_activations_are_recomputed_by_default_as_in_verl() -> None:
    assert trainer()["gradient_checkpointing"] is True
    assert trainer("actor_rollout_ref.model.enable_gradient_checkpointing=False")["gradient_checkpointing"] is False
    selective = f"+{MEGATRON}.override_transformer_config.recompute_granularity=selective"
    assert trainer(selective)["gradient_checkpointing"] == "selective"


@pytest.mark.parametrize(("option", "dtype"), [("dtype=bfloat16", "bfloat16"), ("dtype=fp32", "float32")])
def test_weights_have_the_type_that_verl_computes_with(option: str, dtype: str) -> None:
    assert settings("fully_async", f"{A}.fsdp_config.{option}")["model.dtype"] == dtype
