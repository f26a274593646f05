"""
Other names of settings: former names of asyncrl's settings, and verl's names.

    --set schedule.max_lag=1             ─▶ unknown key ...: it is now 'schedule.max_staleness'
    --set actor_rollout_ref.rollout.n=8  ─▶ unknown key ...: that is verl's name; here it is 'schedule.group_size'

docs/verl.md says what the settings mean in both, and where they differ.
"""

from collections.abc import Container, Mapping

FORMER: Mapping[str, str] = {"schedule.max_lag": "schedule.max_staleness"}
"""Former full keys and the present ones."""
REMOVED: Mapping[str, str] = {"model.scratch": "toy models are made by a command now: asyncrl toy --help"}
"""Full keys of removed settings and sections, and the sentence to answer them with."""
VERL: Mapping[str, str] = {
    # data
    "train_files": "data.train",
    "val_files": "data.held_out",
    "prompt_key": "data.prompt_column",
    "train_max_samples": "data.max_rows",
    "val_max_samples": "evaluation.max_prompts",
    "max_prompt_length": "data.max_prompt_tokens",
    "max_response_length": "sampling.max_tokens",
    "apply_chat_template_kwargs": "data.chat_template_kwargs",
    # schedule
    "train_batch_size": "schedule.groups_per_step",
    "gen_batch_size": "schedule.staleness",
    "ppo_mini_batch_size": "schedule.groups_per_step",
    "require_batches": "schedule.groups_per_step",
    "rollout.n": "schedule.group_size",
    "trigger_parameter_sync_step": "schedule.steps_per_publish",
    "parameter_sync_step": "schedule.steps_per_publish",
    "staleness_threshold": "schedule.staleness",
    "max_off_policy_threshold": "schedule.max_staleness",
    "max_off_policy_strategy": "schedule.on_straggler",
    "filter_groups.enable": "schedule.filter",
    "filter_groups.metric": "schedule.filter_metric",
    "filter_groups.max_num_gen_batches": "schedule.filter_patience",
    "total_rollout_steps": "run.steps",
    "total_training_steps": "run.steps",
    "total_epochs": "run.steps",
    # rollout
    "rollout.name": "rollout.engine",
    "max_num_seqs": "rollout.slots",
    "concurrent_samples_per_replica": "rollout.slots",
    "tensor_model_parallel_size": "rollout.vllm.tensor_parallel_size",
    "kv_cache_memory_bytes": "rollout.vllm.kv_cache_bytes",
    "engine_kwargs.vllm": "rollout.vllm.engine_args",
    # reward
    "custom_reward_function": "reward.function",
    "reward_manager": "reward.function",
    "reward_fn_key": "data.data_source_column",
    "overlong_buffer_cfg": "reward.parts",
    "gdpo_reward_keys": "algorithm.reward_weights",
    # algorithm
    "adv_estimator": "algorithm.advantage",
    "norm_adv_by_std_in_grpo": "algorithm.advantage",
    "loss_mode": "algorithm.loss",
    "clip_ratio": "algorithm.clip_low",
    "clip_ratio_low": "algorithm.clip_low",
    "clip_ratio_high": "algorithm.clip_high",
    "clip_ratio_c": "algorithm.dual_clip",
    "clip_cov_ratio": "algorithm.cov_ratio",
    "clip_cov_lb": "algorithm.cov_low",
    "clip_cov_ub": "algorithm.cov_high",
    "kl_cov_ratio": "algorithm.cov_ratio",
    "ppo_kl_coef": "algorithm.cov_kl_coef",
    "loss_agg_mode": "algorithm.aggregation",
    "loss_scale_factor": "algorithm.aggregation_norm",
    "use_kl_loss": "algorithm.kl_in",
    "use_kl_in_reward": "algorithm.kl_in",
    "kl_loss_coef": "algorithm.kl_coef",
    "kl_loss_type": "algorithm.kl",
    "kl_penalty": "algorithm.kl",
    "kl_ctrl.kl_coef": "algorithm.kl_coef",
    "kl_ctrl.target_kl": "algorithm.kl_target",
    "kl_ctrl.horizon": "algorithm.kl_horizon",
    "entropy_coeff": "algorithm.entropy_coef",
    "rollout_correction": "algorithm.correction",
    "rollout_is": "algorithm.correction.importance",
    "rollout_is_threshold": "algorithm.correction.importance_threshold",
    "rollout_is_batch_normalize": "algorithm.correction.importance_normalize",
    "rollout_rs": "algorithm.correction.rejection",
    "rollout_rs_threshold": "algorithm.correction.rejection_threshold",
    "hybrid_engine": "rollout.colocated",
    # trainer
    "n_gpus_per_node": "trainer.ranks",
    "nnodes": "trainer.nodes",
    "fsdp_size": "trainer.shard_size",
    "ulysses_sequence_parallel_size": "trainer.sequence_parallel",
    "expert_model_parallel_size": "trainer.expert_parallel",
    "ppo_epochs": "trainer.epochs",
    "ppo_max_token_len_per_gpu": "trainer.max_tokens_per_micro_batch",
    "ppo_micro_batch_size_per_gpu": "trainer.max_tokens_per_micro_batch",
    "enable_gradient_checkpointing": "trainer.gradient_checkpointing",
    "freeze_vision_tower": "trainer.freeze_vision",
    "enable_activation_offload": "trainer.offload",
    "param_offload": "trainer.offload",
    "optimizer_offload": "trainer.offload",
    "lr_warmup_steps": "trainer.warmup_steps",
    "lr_scheduler_type": "trainer.lr_schedule",
    "lora_rank": "trainer.lora.rank",
    "lora_alpha": "trainer.lora.alpha",
    "target_modules": "trainer.lora.targets",
    "cliprange_value": "critic.value_clip",
    # the rest
    "update_weights_bucket_megabytes": "weights.bucket_bytes",
    "test_freq": "evaluation.every_versions",
    "val_before_train": "evaluation.at_start",
    "val_kwargs.n": "evaluation.samples",
    "val_kwargs.temperature": "evaluation.temperature",
    "save_freq": "checkpoint.every_steps",
    "max_actor_ckpt_to_keep": "checkpoint.keep",
    "logger": "trackers.use",
    "experiment_name": "run.name",
    "default_local_dir": "run.dir",
}
"""verl's names, shortened as far as they stay unique, and the nearest setting of asyncrl."""


def answer(name: str, known: Container[str]) -> str | None:
    """
    Sentence for an unknown full key that is another name of a setting, or None.

    Args:
        known: Full keys of all settings in the file being read; a name for any other setting has no answer.
    """
    for removed, sentence in REMOVED.items():
        if name == removed or name.startswith(f"{removed}."):
            return sentence
    if (now := FORMER.get(name)) in known:
        return f"it is now {now!r}"
    if (here := from_verl(name)) in known:
        return f"that is verl's name; here it is {here!r}"
    return None


def from_verl(name: str) -> str | None:
    """Setting for verl's ``name``, matched by the longest part of it that is in `VERL`; None without a match."""
    parts = name.split(".")
    endings = (".".join(parts[start:end]) for end in range(len(parts), 0, -1) for start in range(end))
    return next((VERL[ending] for ending in endings if ending in VERL), None)
