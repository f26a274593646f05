"""vLLM takes the place of every engine, and FSDP2 and sequence parallel ranks that of Megatron's dimensions."""

from typing import Any

import pytest

from asyncrl.tools.verl.trainers import Mode
from tests.tools.verl.launches import checked, fate, settings, translated

R = "actor_rollout_ref.rollout"
HELD_OUT = "data.val_files=test.parquet"


def test_another_engine_is_replaced_and_its_arguments_are_said() -> None:
    assert settings("fully_async", f"{R}.name=sglang")["rollout.engine"] == "vllm"
    assert fate("fully_async", f"{R}.name=sglang") == ("substituted", "vLLM takes the place of SGLang")
    assert fate("fully_async", f"+{R}.engine_kwargs.sglang.disable_radix_cache=True")[0] == "substituted"


def test_slots_are_trajectories_under_both_of_verls_bounds() -> None:
    assert settings("fully_async")["rollout.slots"] == 16 * 4
    assert settings("fully_async", f"{R}.max_num_seqs=32")["rollout.slots"] == 32
    assert settings("one_step_off")["rollout.slots"] == 256


def test_arguments_of_vllm_are_passed_on_and_defaults_left_out() -> None:
    found = settings(
        "fully_async",
        f"{R}.max_num_batched_tokens=8192",
        f"{R}.enable_prefix_caching=True",
        f"+{R}.engine_kwargs.vllm.compilation_config.cudagraph_mode=FULL_DECODE_ONLY",
        f"+{R}.engine_kwargs.vllm.seed=3",
        f"+{R}.engine_kwargs.vllm.disable_mm_preprocessor_cache=True",
        f"{R}.expert_parallel_size=2",
    )
    arguments = {key.partition("engine_args.")[2]: value for key, value in found.items() if "engine_args." in key}
    assert arguments == {
        "max_num_batched_tokens": 8192,
        "compilation_config.cudagraph_mode": "FULL_DECODE_ONLY",
        "enable_expert_parallel": True,
        "mm_processor_cache_gb": 0,
    }


def test_a_shorter_length_of_the_engine_than_of_a_trajectory_is_left_out() -> None:
    option = f"{R}.max_model_len=100"
    assert "rollout.vllm.max_model_len" not in settings("fully_async", option)
    assert fate("fully_async", option)[0] == "substituted"
    assert settings("fully_async", f"{R}.max_model_len=4096")["rollout.vllm.max_model_len"] == 4096


def test_the_rollouts_own_lengths_count_over_those_of_the_data() -> None:
    found = settings("fully_async", "data.max_response_length=100", f"{R}.response_length=300")
    assert (found["sampling.max_tokens"], found["data.max_prompt_tokens"]) == (300, 512)


def test_overlong_prompts_are_filtered_unless_they_are_cut() -> None:
    option = "data.filter_overlong_prompts=True"
    assert settings("fully_async", option)["data.filter_overlong_prompts"] is True
    assert "data.filter_overlong_prompts" not in settings("fully_async", option, "data.truncation=left")


def test_evaluations_are_on_all_rows_every_so_many_versions() -> None:
    found = settings(
        "fully_async",
        HELD_OUT,
        "trainer.test_freq=10",
        f"{R}.val_kwargs.temperature=0.6",
        f"{R}.val_kwargs.n=4",
        f"{R}.val_kwargs.top_k=-1",
    )
    assert {key.partition(".")[2]: value for key, value in found.items() if key.startswith("evaluation.")} == {
        "every_versions": 10,
        "max_prompts": 0,
        "temperature": 0.6,
        "samples": 4,
        "top_p": 1.0,
        "top_k": 0,
    }


def test_without_a_frequency_nothing_is_evaluated_later() -> None:
    found = settings("fully_async", HELD_OUT)
    assert (found["evaluation.every_versions"], found["evaluation.at_end"]) == (0, False)


def test_greedy_evaluations_have_one_completion() -> None:
    found = settings("fully_async", HELD_OUT, f"{R}.val_kwargs.n=4", f"{R}.val_kwargs.top_p=0.7")
    assert not {"evaluation.samples", "evaluation.top_p"} & found.keys()


# ── test episodes ─────────────────────────────────────────────────────────────────────────────
# Limits of multi-turn rollouts are those of episodes; their tools are for the user to write.

M = f"{R}.multi_turn"
TOOLS = f"{M}.tool_config_path=sandbox.yaml"
RETOOL = (
    f"{M}.enable=True",
    f"{M}.max_user_turns=8",
    f"{M}.max_assistant_turns=8",
    TOOLS,
    f"{M}.format=hermes",
    "data.max_response_length=2048",
)


def test_a_launch_with_tools_becomes_a_run_of_episodes_whose_tools_are_still_to_be_named() -> None:
    found = settings("fully_async", *RETOOL)
    assert {key: value for key, value in found.items() if key.startswith("environment.")} == {
        "environment.tools": ["tools.py:NAME"],
        "environment.max_tokens": 2048,
        "environment.max_turns": 8,
        "environment.tool_parser": "hermes",
    }
    translation = translated("fully_async", *RETOOL)
    assert translation.verdict == "cannot"
    assert "put in the names of your tools" in translation.toml
    assert checked(translation).environment.is_set, "the file passes the check of settings"


def test_what_to_write_is_said_for_tools_interactions_and_agent_loops() -> None:
    assert fate("synchronous", TOOLS) == (
        "not supported",
        "write the tools as typed functions and name them in environment.tools: docs/environments.md",
    )
    for option in (
        f"{M}.interaction_config_path=judge.yaml",
        f"{R}.agent.default_agent_loop=react_agent",
        f"{R}.agent.agent_loop_config_path=loops.yaml",
    ):
        what, why = fate("synchronous", option)
        assert (what, "environment.function" in why) == ("not supported", True)
        assert "environment.tools" in settings("synchronous", option)


@pytest.mark.parametrize(
    ("limits", "turns"),
    [
        ((f"{M}.max_assistant_turns=5",), 5),
        ((f"{M}.max_user_turns=5",), 6),
        ((f"{M}.max_assistant_turns=5", f"{M}.max_user_turns=2"), 3),
        ((), None),
    ],
)
def test_the_policy_has_one_turn_more_than_answers(limits: tuple[str, ...], turns: int | None) -> None:
    assert settings("synchronous", TOOLS, *limits).get("environment.max_turns") == turns


def test_one_turn_may_be_shorter_than_the_episode() -> None:
    found = settings("synchronous", TOOLS, "data.max_response_length=900", f"{R}.single_turn_response_length=300")
    assert (found["environment.max_tokens"], found["sampling.max_tokens"]) == (900, 300)
    assert found["trainer.max_tokens_per_micro_batch"] >= 900


def test_a_form_of_calls_that_is_not_known_is_that_of_the_chat_template() -> None:
    assert settings("synchronous", TOOLS, f"{M}.format=qwen3_coder")["environment.tool_parser"] == "qwen_xml"
    assert settings("synchronous", TOOLS, f"{M}.format=gpt-oss")["environment.tool_parser"] == "harmony"
    assert "environment.tool_parser" not in settings("synchronous", TOOLS, f"{M}.format=mine")
    assert fate("synchronous", f"{M}.format=mine", TOOLS)[0] == "substituted"


@pytest.mark.parametrize("option", [f"{M}.enable=True", f"{R}.agent.default_agent_loop=tool_agent"])
def test_without_tools_there_is_one_turn(option: str) -> None:
    assert not [key for key in settings("synchronous", option) if key.startswith("environment.")]
    assert translated("synchronous", option, f"{M}.max_user_turns=8").verdict == "runs"


def test_what_an_episode_does_otherwise_is_said() -> None:
    assert fate("synchronous", f"{M}.max_parallel_calls=2", TOOLS)[0] == "substituted"
    assert fate("synchronous", f"{M}.max_tool_response_length=256", TOOLS)[0] == "substituted"
    assert fate("synchronous", f"{M}.tokenization_sanity_check_mode=disable", TOOLS)[0] == "not needed"


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


def test_an_engine_over_several_machines_becomes_one_of_one_machine() -> None:
    option = "actor_rollout_ref.rollout.tensor_model_parallel_size=16"
    machine = ("trainer.nnodes=4", "trainer.n_gpus_per_node=8")
    assert settings("synchronous", option, *machine)["rollout.vllm.tensor_parallel_size"] == 8
    assert fate("synchronous", option, *machine) == (
        "substituted", "rollout.vllm.tensor_parallel_size = 8: an engine is on the devices of one machine"
    )  # fmt: skip


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
