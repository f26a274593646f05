"""verl's options of data, rollout and rewards. A key ending in ``.*`` stands for all options below it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncrl.verl.option import Option, at_least_zero, derived, missing, not_needed, replaced, setting

R = "actor_rollout_ref.rollout"

DATASET = "rows are read and tokenized as the run needs them, without a cache"
OF_SERVER = "rollouts are engines of their own, without a server in between"
NO_PROFILER = "there is no profiler; metrics have the time of each part of a step"
TOOLS = "write the tools as typed functions and name them in environment.tools: docs/environments.md"
LOOP = "write what answers the policy as a class, and name it in environment.function: docs/environments.md"


def files(value: Any) -> Any:
    """Path, or list of several paths, with ``~`` expanded to the home directory as verl does."""
    listed = [str(path) for path in value] if isinstance(value, list) else [str(value)]
    home = [str(Path(path).expanduser()) if path.startswith("~") else path for path in listed]
    return home[0] if len(home) == 1 else home


DATA: Mapping[str, Option] = {
    "data.train_files": setting("data.train", files),
    "data.val_files": setting("data.held_out", files),
    "data.prompt_key": setting("data.prompt_column"),
    "data.reward_fn_key": setting("data.data_source_column"),
    "data.image_key": setting("data.image_column"),
    "data.train_max_samples": setting("data.max_rows", at_least_zero),
    "data.val_max_samples": setting("evaluation.max_prompts", at_least_zero),
    "data.max_prompt_length": derived("data.max_prompt_tokens"),
    "data.max_response_length": derived("sampling.max_tokens", "environment.max_tokens"),
    "data.truncation": setting("data.truncation"),
    "data.filter_overlong_prompts": derived("data.filter_overlong_prompts"),
    "data.shuffle": setting("data.shuffle"),
    "data.seed": setting("run.seed", note="it seeds sampling and the trainer too"),
    "data.apply_chat_template_kwargs": derived("data.chat_template_kwargs"),
    "data.apply_chat_template_kwargs.*": derived("data.chat_template_kwargs"),
    "data.train_batch_size": derived(
        "schedule.groups_per_step",
        note="groups of one step; the fully asynchronous trainer takes ppo_mini_batch_size x require_batches",
    ),
    "data.gen_batch_size": not_needed("prompts are leased one by one; leave it out"),
    "data.val_batch_size": not_needed("an evaluation is one batch of all its prompts"),
    "data.filter_overlong_prompts_workers": not_needed(DATASET),
    "data.dataloader_num_workers": not_needed(DATASET),
    "data.use_shm": not_needed(DATASET),
    "data.cache_dir": not_needed(DATASET),
    "data.return_raw_chat": not_needed("a prompt is a text or a chat, as it is in the file"),
    "data.return_raw_input_ids": not_needed("a prompt is a text or a chat, as it is in the file"),
    "data.return_full_prompt": not_needed("a prompt is a text or a chat, as it is in the file"),
    "data.return_multi_modal_inputs": not_needed("the trainer computes pixels itself"),
    "data.image_patch_size": not_needed("the model's own processor knows it"),
    "data.trust_remote_code": not_needed("no code of a model directory or dataset is run"),
    "data.tokenizer": replaced("the tokenizer is that of the model directory"),
    "data.validation_shuffle": replaced("held-out rows are taken in the order of the file"),
    "data.video_key": replaced("rows with videos are refused", harmless=(None, "videos")),
    "data.audio_key": replaced("rows with audio are refused", harmless=(None, "audios")),
    "data.mm_processor_kwargs": replaced("the processor is that of the model directory", harmless=(None, {})),
    "data.mm_processor_kwargs.*": replaced("the processor is that of the model directory"),
    "data.tool_config_path": missing(TOOLS, near="environment.tools"),
    "data.function_tool_path": missing(TOOLS, near="environment.tools"),
    "data.custom_cls.path": missing("write the rows of your class to parquet once, and train on that"),
    "data.custom_cls.name": not_needed("it is part of custom_cls.path"),
    "data.sampler.*": replaced("prompts are drawn in random order, or in that of the file", harmless=(None,)),
    "data.datagen.*": replaced("rows are not generated during a run", harmless=(None,)),
}

ROLLOUT: Mapping[str, Option] = {
    f"{R}.n": derived("schedule.group_size"),
    f"{R}.name": derived("rollout.engine"),
    f"{R}.max_num_seqs": derived("rollout.slots", note="in trajectories; concurrent_samples_per_replica bounds it too"),
    f"{R}.tensor_model_parallel_size": derived("rollout.vllm.tensor_parallel_size"),
    f"{R}.data_parallel_size": derived("rollout.replicas", note="each replica is a rollout of its own"),
    f"{R}.pipeline_model_parallel_size": replaced(
        "an engine's devices are tensor parallel", harmless=(1, None), near="rollout.vllm.tensor_parallel_size"
    ),
    f"{R}.moe_tensor_parallel_size": replaced("vLLM spreads experts as the other weights", harmless=(1, None)),
    f"{R}.expert_parallel_size": derived("rollout.vllm.engine_args"),
    f"{R}.gpu_memory_utilization": derived("rollout.vllm.gpu_memory_utilization"),
    f"{R}.standalone_gpu_memory_utilization": derived("rollout.vllm.gpu_memory_utilization"),
    f"{R}.max_num_batched_tokens": derived("rollout.vllm.engine_args"),
    f"{R}.enable_prefix_caching": derived("rollout.vllm.engine_args"),
    f"{R}.max_model_len": derived("rollout.vllm.max_model_len", note="prompt and completion together"),
    f"{R}.enforce_eager": setting("rollout.vllm.enforce_eager"),
    f"{R}.enable_chunked_prefill": setting("rollout.vllm.enable_chunked_prefill"),
    f"{R}.engine_kwargs.vllm.kv_cache_memory_bytes": derived("rollout.vllm.kv_cache_bytes"),
    f"{R}.engine_kwargs.vllm": derived("rollout.vllm.engine_args"),
    f"{R}.engine_kwargs.vllm.*": derived("rollout.vllm.engine_args"),
    f"{R}.engine_kwargs.*": replaced("it is an argument of another engine than vLLM"),
    f"{R}.cudagraph_capture_sizes": derived("rollout.vllm.engine_args"),
    f"{R}.dtype": derived("model.dtype"),
    f"{R}.temperature": setting("sampling.temperature"),
    f"{R}.top_p": setting("sampling.top_p"),
    f"{R}.top_k": setting("sampling.top_k", at_least_zero),
    f"{R}.prompt_length": derived("data.max_prompt_tokens"),
    f"{R}.response_length": derived("sampling.max_tokens", "environment.max_tokens"),
    f"{R}.do_sample": missing("greedy trajectories of a group are all equal; sample", harmless=(True, None)),
    f"{R}.ignore_eos": replaced("completions end at the end-of-sequence token"),
    f"{R}.seed": not_needed("each trajectory has a seed of its own, from run.seed"),
    f"{R}.full_determinism": not_needed("each trajectory has a seed of its own: sampling.seeded"),
    f"{R}.val_kwargs.n": derived("evaluation.samples"),
    f"{R}.val_kwargs.temperature": derived("evaluation.temperature"),
    f"{R}.val_kwargs.top_p": derived("evaluation.top_p"),
    f"{R}.val_kwargs.top_k": derived("evaluation.top_k"),
    f"{R}.val_kwargs.do_sample": not_needed("the temperature decides: 0 is greedy, in verl's asynchronous engines too"),
    f"{R}.enable_rollout_routing_replay": derived("rollout.replay_routes"),
    f"{R}.free_cache_engine": not_needed("with rollout.colocated an engine frees its memory in the trainer's turns"),
    f"{R}.enable_sleep_mode": not_needed("rollout.colocated decides it"),
    f"{R}.multi_stage_wake_up": not_needed("rollout.colocated decides it"),
    f"{R}.calculate_log_probs": not_needed("the engine's log-probs are always recorded"),
    f"{R}.logprobs_mode": replaced(
        "log-probs are those of the distribution sampled from", harmless=(None, "processed_logprobs")
    ),
    f"{R}.mode": not_needed("rollouts are always asynchronous"),
    f"{R}.load_format": not_needed("an engine starts with the model's weights, and gets all later ones"),
    f"{R}.layered_summon": not_needed("weights are sent in buckets: weights.bucket_bytes"),
    f"{R}.checkpoint_engine.update_weights_bucket_megabytes": setting(
        "weights.bucket_bytes", lambda value: value << 20, "a device holds two of them at each end"
    ),
    f"{R}.checkpoint_engine.backend": derived("weights.backend", note="`auto` chooses by the devices"),
    f"{R}.checkpoint_engine.*": not_needed("weights.backend and weights.delta choose how weights travel"),
    f"{R}.update_weights_bucket_megabytes": setting("weights.bucket_bytes", lambda value: value << 20),
    f"{R}.disable_log_stats": not_needed("asyncrl has metrics of its own"),
    f"{R}.skip_tokenizer_init": not_needed("stop texts need the engine's tokenizer"),
    f"{R}.log_prob_micro_batch_size": not_needed("trainer.max_tokens_per_micro_batch is for all passes"),
    f"{R}.log_prob_micro_batch_size_per_gpu": not_needed("trainer.max_tokens_per_micro_batch is for all passes"),
    f"{R}.log_prob_use_dynamic_bsz": not_needed("micro-batches are always packed by tokens"),
    f"{R}.log_prob_max_token_len_per_gpu": not_needed("trainer.max_tokens_per_micro_batch is for all passes"),
    f"{R}.scheduling_policy": derived("rollout.vllm.engine_args"),
    f"{R}.over_sample_rate": not_needed("verl does not read it; schedule.order = 'completion' over-samples"),
    f"{R}.quantization": replaced("weights are in model.dtype"),
    f"{R}.quantization_config_file": replaced("weights are in model.dtype"),
    f"{R}.multi_turn.enable": derived("environment.tools", note="an [environment] makes episodes of several turns"),
    f"{R}.multi_turn.max_assistant_turns": derived("environment.max_turns"),
    f"{R}.multi_turn.max_user_turns": derived(
        "environment.max_turns", note="answers to the policy; turns are one more"
    ),
    f"{R}.multi_turn.format": derived("environment.tool_parser"),
    f"{R}.multi_turn.tool_config_path": missing(TOOLS, near="environment.tools"),
    f"{R}.multi_turn.function_tool_path": missing(TOOLS, near="environment.tools"),
    f"{R}.multi_turn.interaction_config_path": missing(LOOP, near="environment.function"),
    f"{R}.multi_turn.max_tool_response_length": replaced("a tool's answer is cut at 65,536 characters: cut it there"),
    f"{R}.multi_turn.tool_response_truncate_side": not_needed("it is read only with max_tool_response_length"),
    f"{R}.multi_turn.max_parallel_calls": replaced("all calls of a turn are run, at the same time"),
    f"{R}.multi_turn.tokenization_sanity_check_mode": not_needed("sampled tokens are never encoded again"),
    f"{R}.multi_turn.use_inference_chat_template": replaced("environment.history = 'as_template' does this"),
    f"{R}.multi_turn.*": replaced("there is no such setting"),
    f"{R}.single_turn_response_length": derived("sampling.max_tokens", note="of one turn"),
    f"{R}.agent.num_workers": not_needed(OF_SERVER),
    f"{R}.agent.default_agent_loop": missing(LOOP, harmless=(None, "single_turn_agent", "tool_agent")),
    f"{R}.agent.agent_loop_config_path": missing(LOOP, near="environment.function"),
    f"{R}.agent.*": replaced(OF_SERVER),
    f"{R}.nnodes": not_needed("trainer and rollouts share devices, or rollout.nnodes counts"),
    f"{R}.n_gpus_per_node": not_needed("trainer and rollouts share devices, or rollout.n_gpus_per_node counts"),
    f"{R}.prometheus.enable": replaced("metrics go to the run directory and trackers.use"),
    f"{R}.prometheus.*": not_needed("it is read only with prometheus.enable"),
    f"{R}.trace.*": not_needed("every trajectory is in samples/ of the run directory"),
    f"{R}.skip.*": replaced("rollouts are never skipped or read from a file"),
    f"{R}.profiler.*": replaced(NO_PROFILER),
    f"{R}.disaggregation.*": replaced("an engine prefills and decodes", harmless=(None, False, 1, "nixl")),
    f"{R}.mtp.*": replaced("tokens are decoded one by one, and no extra head is trained"),
    f"{R}.qat.*": replaced("weights are in model.dtype"),
    f"{R}.moe_load_balance_metrics_interval": replaced("there are no such metrics"),
    f"{R}.limit_images": replaced("a prompt may have any number of pictures"),
}

REWARD: Mapping[str, Option] = {
    "reward.custom_reward_function.path": derived("reward.function", note="called with verl's arguments"),
    "reward.custom_reward_function.name": derived("reward.function"),
    "reward.custom_reward_function.reward_kwargs": derived("reward.options"),
    "reward.custom_reward_function.reward_kwargs.*": derived("reward.options"),
    "reward.custom_reward_function": missing("give its path, and its name", near="reward.function"),
    "reward.reward_manager.name": derived("reward.function", "reward.parts", note="`auto` chooses by the data source"),
    "reward.reward_manager.*": missing(
        "write your rewards as reward.function = 'file.py:name'", harmless=(None, "register")
    ),
    "reward.reward_kwargs.overlong_buffer_cfg.enable": derived("reward.parts"),
    "reward.reward_kwargs.overlong_buffer_cfg.len": derived("reward.parts"),
    "reward.reward_kwargs.overlong_buffer_cfg.penalty_factor": derived("reward.parts"),
    "reward.reward_kwargs.overlong_buffer_cfg.log": not_needed("every part of a reward is a metric"),
    "reward.reward_kwargs.max_resp_len": derived("reward.parts"),
    "reward.reward_kwargs.*": missing("write your rewards as reward.function = 'file.py:name'"),
    "reward.num_workers": not_needed("reward.workers is for rewards that take a core; the default is 1"),
    "reward.reward_model.enable": missing("serve the model, and set reward.function = 'reward_model': docs/rewards.md"),
    "reward.reward_model.*": not_needed("it is read only with reward_model.enable"),
    "reward.sandbox_fusion.url": missing("use reward.function = 'code' or 'remote': docs/rewards.md"),
    "reward.sandbox_fusion.*": not_needed("it is read only with sandbox_fusion.url"),
}
