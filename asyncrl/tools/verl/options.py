"""The fate of every option of verl's here: tables by the section of the option."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncrl.tools.verl.overrides import Option, at_least_zero, derived, missing, not_needed, part_of, replaced, setting

# ── sampling ──────────────────────────────────────────────────────────────────────────────────
# verl's options of data, rollout and rewards. A key ending in ``.*`` stands for all options below it.

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
    f"{R}.val_kwargs.do_sample": derived("evaluation.temperature"),
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
    f"{R}.checkpoint_engine.backend": derived("weights.delta"),
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
    f"{R}.multi_turn.max_tool_response_length": replaced(
        "environment.observation_tokens cuts answers by tokens; verl counts characters"
    ),
    f"{R}.multi_turn.tool_response_truncate_side": replaced(
        "environment.observation_cut names the part that is lost; verl's side is the one that is kept"
    ),
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
    f"{R}.prometheus.*": part_of(f"{R}.prometheus.enable"),
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
    "reward.overlong_buffer.enable": derived("reward.parts"),
    "reward.overlong_buffer.len": derived("reward.parts"),
    "reward.overlong_buffer.penalty_factor": derived("reward.parts"),
    "reward.overlong_buffer.log": not_needed("every part of a reward is a metric"),
    "reward.launch_reward_fn_async": not_needed("a trajectory's reward is computed while others are sampled"),
    "reward.use_reward_loop": not_needed("a trajectory's reward is computed while others are sampled"),
    "reward.reward_kwargs.*": missing("write your rewards as reward.function = 'file.py:name'"),
    "reward.num_workers": not_needed("reward.workers is for rewards that take a core; the default is 1"),
    "reward.reward_model.enable": missing("serve the model, and set reward.function = 'reward_model': docs/rewards.md"),
    "reward.reward_model.*": part_of("reward.reward_model.enable"),
    "reward.sandbox_fusion.url": missing("use reward.function = 'code' or 'remote': docs/rewards.md"),
    "reward.sandbox_fusion.*": part_of("reward.sandbox_fusion.url"),
}


# ── training ──────────────────────────────────────────────────────────────────────────────────
# verl's options of schedule, algorithm, trainer and models. A key ending in ``.*`` stands for all options below it.

A, M, F = "actor_rollout_ref.actor", "actor_rollout_ref.model", "actor_rollout_ref.ref"

FSDP = "the trainer shards parameters, gradients and optimizer state by FSDP2"
PACKED = "micro-batches are always packed by tokens, without padding"
ONE_BUDGET = "trainer.max_tokens_per_micro_batch is for policy, reference and critic"
AS_POLICY = "policy, reference and critic are spread over the same ranks in the same way"
MEGATRON = "it is an option of Megatron, and FSDP2 trains here"
BOTH = "beside a KL in the loss; alone, it is algorithm.{}"
BY_LAYER = "trainer.gradient_checkpointing is by layer"
COMPILED = "the model's own modules compute; nothing is compiled"
CHECKPOINTS = "a checkpoint has model, optimizer and position; asyncrl export writes a Hugging Face directory"
DYNAMIC = "async_training.use_dynamic_resource_scheduling"
RAY = "there is no Ray: asyncrl runs its own processes"

SCHEDULE: Mapping[str, Option] = {
    "trainer.nnodes": derived("trainer.nodes"),
    "trainer.n_gpus_per_node": derived("trainer.ranks"),
    "trainer.device": derived("trainer.device", "rollout.device"),
    "trainer.total_epochs": derived("run.epochs"),
    "trainer.total_training_steps": derived("run.steps"),
    "trainer.val_before_train": setting("evaluation.at_start"),
    "trainer.test_freq": derived("evaluation.every_versions"),
    "trainer.log_val_generations": setting("evaluation.answers", at_least_zero),
    "trainer.save_freq": derived("checkpoint.every_steps", note="in steps; verl's fully async counts versions"),
    "trainer.max_actor_ckpt_to_keep": setting("checkpoint.keep"),
    "trainer.max_critic_ckpt_to_keep": not_needed("a checkpoint holds policy and critic: checkpoint.keep"),
    "trainer.logger": derived("trackers.use"),
    "trainer.project_name": derived("trackers.options", note="an option of the tracker, such as wandb.project"),
    "trainer.experiment_name": derived("run.name"),
    "trainer.default_local_dir": derived("run.dir"),
    "trainer.resume_mode": missing(
        "asyncrl resume RUN continues a run; or set model.path to an exported checkpoint",
        harmless=(None, "auto", "disable"),
    ),
    "trainer.resume_from_path": not_needed("asyncrl resume RUN continues a run"),
    "trainer.balance_batch": not_needed("micro-batches are packed to equal work"),
    "trainer.critic_warmup": replaced("policy and critic train from the first step"),
    "trainer.val_only": missing("evaluate with: asyncrl eval MODEL"),
    "trainer.rollout_data_dir": not_needed("every trajectory is in samples/ of the run directory"),
    "trainer.validation_data_dir": replaced("evaluation.answers keeps so many completions"),
    "trainer.default_hdfs_dir": replaced("checkpoints stay in the run directory"),
    "trainer.del_local_ckpt_after_load": not_needed("checkpoint.keep decides"),
    "trainer.esi_redundant_time": replaced("stop a run with SIGTERM: it saves and can be resumed"),
    "trainer.ray_wait_register_center_timeout": not_needed(RAY),
    "trainer.use_legacy_worker_impl": not_needed("it chooses among implementations of verl"),
    "trainer.use_v1": derived("schedule.staleness", note="it chooses among verl's trainers"),
    "trainer.v1.trainer_mode": derived("schedule.staleness", "rollout.colocated"),
    "trainer.v1.separate_async.parameter_sync_step": derived("schedule.steps_per_publish"),
    "trainer.v1.separate_async.num_warmup_batches": derived("schedule.staleness"),
    "trainer.v1.colocate_async.num_warmup_batches": derived("schedule.staleness"),
    "trainer.v1.sampler.max_off_policy_threshold": derived(
        "schedule.max_staleness", note="minus 1: verl counts the version of the lease as 1"
    ),
    "trainer.v1.sampler.max_off_policy_strategy": derived("schedule.on_straggler"),
    "trainer.v1.sampler.sync_refill_failed_groups": not_needed("a dropped group is always replaced"),
    "trainer.v1.sampler.custom_sampler.path": missing("prompts are drawn in random order, or in that of the file"),
    "trainer.v1.*": replaced("the split of devices between trainer and rollouts is fixed"),
    "trainer.worker_env.*": replaced("set environment variables where asyncrl is started"),
    "async_training.staleness_threshold": derived("schedule.staleness"),
    "async_training.trigger_parameter_sync_step": derived("schedule.steps_per_publish"),
    "async_training.require_batches": derived(
        "trainer.mini_batches", "schedule.groups_per_step", note="groups of a step: ppo_mini_batch_size x it"
    ),
    "async_training.partial_rollout": derived("schedule.partial_rollout"),
    "async_training.concurrent_samples_per_replica": derived("rollout.slots", note="in trajectories: it x n"),
    "async_training.use_trainer_do_validate": replaced("one rollout evaluates while the others go on"),
    "async_training.use_dynamic_resource_scheduling": replaced("the split of devices is fixed"),
    "async_training.dynamic_schedule_policy": part_of(DYNAMIC),
    "async_training.dynamic_schedule_deactivate_ratio": part_of(DYNAMIC),
    "async_training.dynamic_schedule_enable_rebalance": part_of(DYNAMIC),
    "rollout.nnodes": derived("rollout.replicas", note="replicas are those of one machine"),
    "rollout.n_gpus_per_node": derived(
        "rollout.replicas", note="devices for rollouts / rollout.vllm.tensor_parallel_size"
    ),
    "rollout.total_rollout_steps": derived("run.steps", note="groups / (groups_per_step x steps_per_publish) versions"),
    "rollout.n": not_needed("verl reads that of actor_rollout_ref", near="schedule.group_size"),
    "rollout.test_freq": derived("evaluation.every_versions"),
    "rollout.total_epochs": derived("run.steps", note="the smaller of it and trainer.total_epochs"),
    "rollout.n_gpus": derived("trainer.ranks", "rollout.replicas", note="it takes the rollouts' from the trainer's"),
    f"{R}.n_gpus": derived("trainer.ranks", "rollout.replicas", note="it takes the rollouts' from the trainer's"),
    "async_training.compute_prox_log_prob": derived("algorithm.correction.mode", "algorithm.correction.anchor"),
    "async_training.use_rollout_log_probs": derived("algorithm.correction.mode"),
    "async_training.checkpoint_engine.*": not_needed("weights.backend and weights.delta choose how weights travel"),
}

ALGORITHM: Mapping[str, Option] = {
    "algorithm.adv_estimator": derived("algorithm.advantage"),
    "algorithm.norm_adv_by_std_in_grpo": derived("algorithm.advantage", note="False is advantage = 'dr_grpo'"),
    "algorithm.gamma": derived("algorithm.gamma"),
    "algorithm.lam": derived("algorithm.lam"),
    "algorithm.use_kl_in_reward": derived("algorithm.kl_in", "algorithm.kl_coef", note="False is kl_coef = 0"),
    "algorithm.kl_penalty": derived("algorithm.kl_reward", "algorithm.kl", note=BOTH.format("kl")),
    "algorithm.kl_ctrl.type": derived("algorithm.kl_target"),
    "algorithm.kl_ctrl.kl_coef": derived("algorithm.kl_reward_coef", "algorithm.kl_coef", note=BOTH.format("kl_coef")),
    "algorithm.kl_ctrl.target_kl": derived("algorithm.kl_target"),
    "algorithm.kl_ctrl.horizon": derived("algorithm.kl_horizon"),
    "algorithm.filter_groups.enable": derived("schedule.filter"),
    "algorithm.filter_groups.metric": derived("schedule.filter_metric"),
    "algorithm.filter_groups.max_num_gen_batches": derived("schedule.filter_patience", note="in groups, not batches"),
    "algorithm.filter_groups.*": not_needed("schedule.filter decides when a group is complete"),
    "algorithm.rollout_correction": derived("algorithm.correction"),
    "algorithm.rollout_correction.bypass_mode": derived("algorithm.correction.mode", "algorithm.correction.anchor"),
    "algorithm.rollout_correction.rollout_is": derived("algorithm.correction.importance"),
    "algorithm.rollout_correction.rollout_is_threshold": derived("algorithm.correction.importance_threshold"),
    "algorithm.rollout_correction.rollout_is_batch_normalize": derived("algorithm.correction.importance_normalize"),
    "algorithm.rollout_correction.rollout_rs": derived("algorithm.correction.rejection"),
    "algorithm.rollout_correction.rollout_rs_threshold": derived("algorithm.correction.rejection_threshold"),
    "algorithm.rollout_correction.rollout_rs_threshold_lower": derived("algorithm.correction.rejection_threshold"),
    "algorithm.rollout_correction.rollout_token_veto_threshold": replaced(
        "rejection looks at one criterion for each name in algorithm.correction.rejection"
    ),
    "algorithm.rollout_correction.use_policy_gradient": derived("algorithm.loss"),
    "algorithm.rollout_correction.loss_type": derived("algorithm.loss"),
    "algorithm.use_pf_ppo": replaced("groups are trained on as they are"),
    "algorithm.pf_ppo.*": part_of("algorithm.use_pf_ppo"),
    "algorithm.gdpo_reward_keys": derived("algorithm.reward_weights"),
}

ACTOR: Mapping[str, Option] = {
    f"{A}.ppo_mini_batch_size": derived(
        "schedule.groups_per_step",
        "trainer.mini_batches",
        note="x require_batches, if fully asynchronous; else mini_batches = train_batch_size / ppo_mini_batch_size",
    ),
    f"{A}.ppo_epochs": setting("trainer.epochs"),
    f"{A}.ppo_micro_batch_size_per_gpu": derived("trainer.max_tokens_per_micro_batch", note="in tokens"),
    f"{A}.ppo_micro_batch_size": derived("trainer.max_tokens_per_micro_batch", note="in tokens"),
    f"{A}.ppo_max_token_len_per_gpu": derived("trainer.max_tokens_per_micro_batch"),
    f"{A}.use_dynamic_bsz": derived("trainer.max_tokens_per_micro_batch", note=PACKED),
    f"{A}.ulysses_sequence_parallel_size": derived("trainer.sequence_parallel"),
    f"{A}.fsdp_config.ulysses_sequence_parallel_size": derived("trainer.sequence_parallel"),
    f"{A}.fsdp_config.fsdp_size": derived("trainer.shard_size"),
    f"{A}.fsdp_config.param_offload": derived("trainer.offload"),
    f"{A}.fsdp_config.optimizer_offload": derived("trainer.offload"),
    f"{A}.fsdp_config.offload_policy": derived("trainer.offload"),
    f"{A}.fsdp_config.dtype": derived("model.dtype"),
    f"{A}.fsdp_config.model_dtype": not_needed("weights are in model.dtype, and the optimizer's state is in float32"),
    f"{A}.clip_ratio": derived("algorithm.clip_low", note="verl reads it where clip_ratio_low or _high is null"),
    f"{A}.clip_ratio_low": derived("algorithm.clip_low"),
    f"{A}.clip_ratio_high": derived("algorithm.clip_high"),
    f"{A}.clip_ratio_c": derived("algorithm.dual_clip"),
    f"{A}.tau_pos": derived("algorithm.tau_pos"),
    f"{A}.tau_neg": derived("algorithm.tau_neg"),
    f"{A}.policy_loss.loss_mode": derived("algorithm.loss"),
    f"{A}.policy_loss.clip_cov_ratio": derived("algorithm.cov_ratio"),
    f"{A}.policy_loss.clip_cov_lb": derived("algorithm.cov_low"),
    f"{A}.policy_loss.clip_cov_ub": derived("algorithm.cov_high"),
    f"{A}.policy_loss.kl_cov_ratio": derived("algorithm.cov_ratio"),
    f"{A}.policy_loss.ppo_kl_coef": derived("algorithm.cov_kl_coef"),
    f"{A}.policy_loss.tau_pos": not_needed("verl reads actor.tau_pos"),
    f"{A}.policy_loss.tau_neg": not_needed("verl reads actor.tau_neg"),
    f"{A}.policy_loss.dro_beta": derived("algorithm.dro_beta"),
    f"{A}.loss_agg_mode": derived("algorithm.aggregation"),
    f"{A}.loss_scale_factor": derived("algorithm.aggregation_norm"),
    f"{A}.use_kl_loss": derived("algorithm.kl_in", "algorithm.kl_coef", note="False is kl_coef = 0"),
    f"{A}.kl_loss_coef": derived("algorithm.kl_coef"),
    f"{A}.kl_loss_type": derived("algorithm.kl"),
    f"{A}.entropy_coeff": setting("algorithm.entropy_coef"),
    f"{A}.freeze_vision_tower": setting("trainer.freeze_vision"),
    f"{A}.grad_clip": derived("trainer.grad_clip"),
    f"{A}.optim.clip_grad": derived("trainer.grad_clip"),
    f"{A}.optim.lr": setting("trainer.lr", float),
    f"{A}.optim.weight_decay": setting("trainer.weight_decay", float),
    f"{A}.optim.betas": derived("trainer.beta1", "trainer.beta2"),
    f"{A}.optim.lr_warmup_steps": derived("trainer.warmup_steps", note="verl counts them, too, once per fetched batch"),
    f"{A}.optim.lr_warmup_steps_ratio": derived("trainer.warmup_steps"),
    f"{A}.optim.lr_scheduler_type": derived("trainer.lr_schedule"),
    f"{A}.optim.warmup_style": derived("trainer.lr_schedule"),
    f"{A}.optim.lr_decay_style": derived("trainer.lr_schedule"),
    f"{A}.optim.min_lr_ratio": derived("trainer.min_lr_ratio"),
    f"{A}.optim.min_lr": derived("trainer.min_lr_ratio", note="as a fraction of lr"),
    f"{A}.optim.lr_decay_steps": replaced("a cosine ends with the run", near="trainer.lr_schedule"),
    f"{A}.optim.num_cycles": replaced("a cosine has half a period", harmless=(0.5, None)),
    f"{A}.optim.total_training_steps": not_needed("the length of the run is known"),
    f"{A}.optim.optimizer": replaced("the optimizer is AdamW", harmless=("AdamW", "adam", "adamw", None)),
    f"{A}.optim.override_optimizer_config.optimizer_cpu_offload": derived("trainer.offload"),
    f"{A}.optim.override_optimizer_config.optimizer_offload_fraction": replaced(
        "trainer.offload moves all moments or none", harmless=(None, 0, 1)
    ),
    f"{A}.optim.override_optimizer_config.*": not_needed(MEGATRON),
    f"{A}.optim.optimizer_impl": not_needed("AdamW is torch's, with float32 moments"),
    f"{A}.optim.zero_indexed_step": not_needed("AdamW is torch's, with float32 moments"),
    f"{A}.optim.use_precision_aware_optimizer": not_needed("AdamW is torch's, with float32 moments"),
    f"{A}.optim.main_grads_dtype": not_needed("AdamW is torch's, with float32 moments"),
    f"{A}.optim.exp_avg_dtype": not_needed("AdamW is torch's, with float32 moments"),
    f"{A}.optim.exp_avg_sq_dtype": not_needed("AdamW is torch's, with float32 moments"),
    f"{A}.optim.use_checkpoint_opt_param_scheduler": not_needed("AdamW is torch's, with float32 moments"),
    f"{A}.optim.lr_warmup_init": not_needed("AdamW is torch's, with float32 moments"),
    f"{A}.optim.use_layer_wise_distributed_optimizer": not_needed("AdamW is torch's, with float32 moments"),
    f"{A}.optim.override_optimizer_config": not_needed("AdamW is torch's, with float32 moments"),
    f"{A}.megatron.tensor_model_parallel_size": derived(
        "trainer.sequence_parallel", note="FSDP2 shards the weights, and these ranks share each row"
    ),
    f"{A}.megatron.context_parallel_size": derived("trainer.sequence_parallel"),
    f"{A}.megatron.pipeline_model_parallel_size": replaced(FSDP, harmless=(1, None)),
    f"{A}.megatron.virtual_pipeline_model_parallel_size": replaced(FSDP),
    f"{A}.megatron.expert_model_parallel_size": derived("trainer.expert_parallel"),
    f"{A}.megatron.expert_tensor_parallel_size": replaced(FSDP, harmless=(1, None)),
    f"{A}.megatron.param_offload": derived("trainer.offload"),
    f"{A}.megatron.grad_offload": replaced("gradients are on the host with the parameters: trainer.offload"),
    f"{A}.megatron.optimizer_offload": derived("trainer.offload"),
    f"{A}.megatron.override_transformer_config.recompute_granularity": derived("trainer.gradient_checkpointing"),
    f"{A}.megatron.override_transformer_config.recompute_method": not_needed(BY_LAYER),
    f"{A}.megatron.override_transformer_config.recompute_num_layers": not_needed(BY_LAYER),
    f"{A}.megatron.override_transformer_config.context_parallel_size": not_needed(
        "megatron.context_parallel_size counts", near="trainer.sequence_parallel"
    ),
    f"{A}.megatron.override_transformer_config.moe_aux_loss_coeff": replaced("no balance of experts is in the loss"),
    f"{A}.megatron.override_transformer_config.moe_z_loss_coeff": replaced("no balance of experts is in the loss"),
    f"{A}.megatron.override_transformer_config.fp8": replaced("weights are in model.dtype"),
    f"{A}.megatron.qat.*": replaced("weights are in model.dtype"),
    f"{A}.megatron.*": not_needed(MEGATRON),
    f"{A}.strategy": replaced(FSDP, harmless=("fsdp", "fsdp2", None)),
    f"{A}.fsdp_config.strategy": replaced(FSDP, harmless=("fsdp", "fsdp2", None)),
    f"{A}.fsdp_config.qat.*": replaced("weights are in model.dtype"),
    f"{A}.fsdp_config.*": not_needed("FSDP2's own way"),
    f"{A}.engine.*": replaced(FSDP, harmless=()),
    f"{A}.model_engine": replaced(FSDP, harmless=("dp", None)),
    f"{A}.veomni.*": replaced(FSDP, harmless=()),
    f"{A}.torchtitan.*": replaced(FSDP, harmless=()),
    f"{A}.shuffle": replaced("mini-batches are parts of a batch in its order"),
    f"{A}.data_loader_seed": not_needed("mini-batches are parts of a batch in its order"),
    f"{A}.use_remove_padding": not_needed(PACKED),
    f"{A}.use_torch_compile": not_needed(COMPILED),
    f"{A}.use_fused_kernels": not_needed("log-probs are computed in pieces, and never for a whole batch at once"),
    f"{A}.entropy_from_logits_with_chunking": not_needed("entropy is computed in pieces"),
    f"{A}.entropy_from_logits_chunk_size": not_needed("entropy is computed in pieces"),
    f"{A}.entropy_checkpointing": not_needed("entropy is computed in pieces"),
    f"{A}.calculate_entropy": not_needed("entropy is always a metric"),
    f"{A}.calculate_sum_pi_squared": not_needed("computed for the estimators that need it"),
    f"{A}.use_rollout_log_probs": not_needed("verl does not read it: correction.mode decides"),
    f"{A}.use_prefix_grouper": not_needed("the prompt of a group is computed once"),
    f"{A}.load_weight": not_needed("the model's weights are always loaded"),
    f"{A}.rollout_n": not_needed("actor_rollout_ref.rollout.n counts", near="schedule.group_size"),
    f"{A}.checkpoint.*": not_needed(CHECKPOINTS),
    f"{A}.router_replay.mode": derived("rollout.replay_routes", note="disabled leaves it out"),
    f"{A}.router_replay.*": not_needed("routes travel with the trajectories"),
    f"{A}.profiler.*": replaced(NO_PROFILER),
    f"{A}.qat.*": replaced("weights are in model.dtype"),
}

MODEL: Mapping[str, Option] = {
    f"{M}.path": derived("model.path"),
    f"{M}.override_config.model_config.*": derived("model.overrides"),
    f"{M}.override_config.moe_config.freeze_moe_router": replaced("routers are trained with the model"),
    f"{M}.override_config.attn_implementation": not_needed("the trainer chooses its attention by the device"),
    f"{M}.override_config.*": derived("model.overrides"),
    f"{M}.enable_gradient_checkpointing": derived("trainer.gradient_checkpointing"),
    f"{M}.enable_activation_offload": derived("trainer.offload"),
    f"{M}.lora_rank": derived("trainer.lora.rank"),
    f"{M}.lora_alpha": derived("trainer.lora.alpha"),
    f"{M}.target_modules": derived("trainer.lora.targets"),
    f"{M}.lora.rank": derived("trainer.lora.rank"),
    f"{M}.lora.alpha": derived("trainer.lora.alpha"),
    f"{M}.lora.target_modules": derived("trainer.lora.targets"),
    f"{M}.lora.type": replaced("an adapter is LoRA's", harmless=("lora", None)),
    f"{M}.lora.merge": not_needed("rollouts get the merged weights, or the adapter: trainer.lora"),
    f"{M}.lora.dropout": replaced("there is no dropout"),
    f"{M}.lora.*": replaced("trainer.lora has rank, alpha, targets and path"),
    f"{M}.exclude_modules": replaced("trainer.lora.targets names the layers with an adapter"),
    f"{M}.lora_adapter_path": derived(
        "trainer.lora.path", note="the reference of a KL has the adapter too, unlike verl's"
    ),
    f"{M}.use_remove_padding": not_needed(PACKED),
    f"{M}.use_fused_kernels": not_needed("log-probs are computed in pieces, and never for a whole batch at once"),
    f"{M}.fused_kernel_options.*": not_needed("log-probs are computed in pieces, and never for a whole batch at once"),
    f"{M}.use_liger": not_needed(COMPILED),
    f"{M}.use_shm": not_needed("rollouts of a machine read the model through the page cache"),
    f"{M}.trust_remote_code": not_needed("no code of a model directory is run: transformers has the model"),
    f"{M}.external_lib": missing("register the model in transformers, or use one that is"),
    f"{M}.hf_config_path": replaced("the configuration is that of the model directory"),
    f"{M}.tokenizer_path": replaced("the tokenizer is that of the model directory"),
    f"{M}.custom_chat_template": replaced("the chat template is that of the model directory; edit it there"),
    f"{M}.tiled_mlp.*": replaced("trainer.offload and trainer.gradient_checkpointing save memory"),
    f"{M}.mtp.enable": replaced("tokens are decoded one by one, and no extra head is trained"),
    f"{M}.mtp.*": part_of(f"{M}.mtp.enable"),
    f"{F}.fsdp_config.param_offload": derived("trainer.offload"),
    f"{F}.megatron.param_offload": derived("trainer.offload"),
    f"{F}.log_prob_micro_batch_size_per_gpu": not_needed(ONE_BUDGET),
    f"{F}.log_prob_micro_batch_size": not_needed(ONE_BUDGET),
    f"{F}.log_prob_max_token_len_per_gpu": not_needed(ONE_BUDGET),
    f"{F}.log_prob_use_dynamic_bsz": not_needed(PACKED),
    f"{F}.profiler.*": replaced(NO_PROFILER),
    f"{F}.*": not_needed(AS_POLICY),
    "actor_rollout_ref.hybrid_engine": derived("rollout.colocated"),
    "actor_rollout_ref.nccl_timeout": setting("trainer.collective_timeout_s", float),
    "critic.model.path": derived("critic.path"),
    "critic.optim.lr": derived("critic.lr"),
    "critic.optim.weight_decay": derived("critic.weight_decay"),
    "critic.optim.clip_grad": derived("critic.grad_clip"),
    "critic.grad_clip": derived("critic.grad_clip"),
    **{
        f"critic.{name}": not_needed("the critic has the policy's, which is the same")
        for name in (
            "optim.betas",
            "optim.lr_warmup_steps",
            "optim.lr_warmup_steps_ratio",
            "optim.lr_scheduler_type",
            "optim.warmup_style",
            "optim.min_lr_ratio",
            "model.lora_rank",
            "model.lora_alpha",
            "model.target_modules",
            "ppo_epochs",
            "shuffle",
            "loss_agg_mode",
        )
    },
    "critic.cliprange_value": derived("critic.value_clip"),
    **{
        f"critic.{name}": not_needed(AS_POLICY)
        for name in (
            "strategy",
            "optim.*",
            "model.*",
            "fsdp_config.*",
            "fsdp.*",
            "megatron.*",
            "checkpoint.*",
            "ppo_mini_batch_size",
            "ppo_micro_batch_size_per_gpu",
            "ppo_micro_batch_size",
            "use_dynamic_bsz",
            "ppo_max_token_len_per_gpu",
            "forward_max_token_len_per_gpu",
            "ulysses_sequence_parallel_size",
            "enable",
            "forward_micro_batch_size_per_gpu",
            "rollout_n",
            "profiler.*",
            "data_loader_seed",
        )
    },
}

SURROUNDINGS: Mapping[str, Option] = {
    "model_engine": replaced(FSDP, harmless=("dp", None)),
    "global_profiler.*": replaced(NO_PROFILER),
    "ray_kwargs.*": not_needed(RAY),
    "transfer_queue.*": not_needed("payloads travel through the spool"),
    "distillation.enabled": missing("asyncrl does not distil: leave it out"),
    "distillation.*": part_of("distillation.enabled"),
    "skip.*": replaced("rollouts are never skipped or read from a file"),
    "hydra.*": not_needed("there is no Hydra: --set a.b=value overrides a setting"),
}

TABLE: Mapping[str, Option] = {**SCHEDULE, **DATA, **ALGORITHM, **ROLLOUT, **ACTOR, **MODEL, **REWARD, **SURROUNDINGS}
"""All rows by key. The tables that a shortened key means most often are first."""
