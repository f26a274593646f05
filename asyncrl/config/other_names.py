"""
Other names of settings: former names of asyncrl's settings, verl's names, and names in use elsewhere.

    --set schedule.max_lag=1             ─▶ unknown key ...: its name is 'schedule.max_staleness'
    --set actor_rollout_ref.rollout.n=8  ─▶ unknown key ...: that is verl's name; here it is 'schedule.group_size'
    --set trainer.learning_rate=1e-6     ─▶ unknown key ...: did you mean 'trainer.lr'?

verl's names are those in the tables of asyncrl/verl/options, which `asyncrl import-verl` reads too. docs/verl.md
compares the meanings of the settings.
"""

from collections.abc import Collection, Mapping

from asyncrl.verl.options.lookup import like

FORMER: Mapping[str, str] = {"schedule.max_lag": "schedule.max_staleness"}
"""Former full keys and the present ones."""
REMOVED: Mapping[str, str] = {"model.scratch": "a command makes toy models: asyncrl toy --help"}
"""Answer to each full key of a removed setting or section."""
ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    "run.name": ("run_name",),
    "run.dir": ("output_dir", "log_dir", "run_dir"),
    "run.steps": ("max_steps", "num_steps", "total_steps", "train_steps", "training_steps"),
    "run.epochs": ("num_train_epochs", "num_epochs", "n_epochs", "max_epochs"),
    "model.path": ("model_name", "model_name_or_path", "model_path", "base_model", "pretrained_model"),
    "model.dtype": ("torch_dtype", "precision", "bf16"),
    "data.train": ("train_file", "train_data", "train_dataset", "dataset", "dataset_name", "prompt_data"),
    "data.held_out": ("val_file", "val_data", "test_file", "test_data", "eval_file", "eval_data", "eval_dataset"),
    "data.max_prompt_tokens": ("max_prompt_len",),
    "schedule.groups_per_step": ("batch_size", "rollout_batch_size", "global_batch_size", "prompts_per_step"),
    "schedule.group_size": (
        "n",
        "num_generations",
        "n_samples",
        "num_samples",
        "samples_per_prompt",
        "n_samples_per_prompt",
        "num_samples_per_prompt",
        "completions_per_prompt",
        "rollouts_per_prompt",
    ),
    "schedule.staleness": ("async_level", "max_async_level", "off_policy_steps", "max_off_policyness"),
    "sampling.max_tokens": (
        "max_new_tokens",
        "max_completion_length",
        "max_completion_tokens",
        "max_response_len",
        "completion_length",
    ),
    "reward.function": ("reward_fn", "reward_func", "reward_funcs", "reward_function"),
    "algorithm.advantage": ("advantage_estimator",),
    "algorithm.loss": ("loss_fn", "policy_loss"),
    "algorithm.clip_low": ("epsilon", "clip_eps", "clip_epsilon", "eps_clip", "clip_range", "cliprange"),
    "algorithm.clip_high": ("epsilon_high", "eps_clip_high"),
    "algorithm.kl_coef": ("beta", "kl_beta", "init_kl_coef", "kl_coeff", "kl_penalty_coef"),
    "algorithm.entropy_coef": ("ent_coef", "entropy_bonus"),
    "trainer.lr": ("learning_rate", "actor_learning_rate", "actor_lr"),
    "trainer.lr_schedule": ("lr_scheduler", "scheduler"),
    "trainer.warmup_steps": ("num_warmup_steps", "warmup_ratio"),
    "trainer.grad_clip": ("max_grad_norm", "max_norm", "clip_grad_norm", "gradient_clipping"),
    "trainer.epochs": ("num_iterations", "inner_epochs"),
    "trainer.max_tokens_per_micro_batch": (
        "micro_batch_size",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
    ),
    "trainer.ranks": ("num_gpus", "n_gpus", "gpus", "world_size", "num_processes"),
    "trainer.lora.rank": ("lora_r",),
    "rollout.replicas": ("num_rollouts", "num_engines", "vllm_num_engines"),
    "rollout.engine": ("use_vllm", "inference_backend"),
    "evaluation.every_versions": ("eval_steps", "eval_every", "eval_interval", "test_every"),
    "checkpoint.every_steps": ("save_steps", "save_every", "save_interval"),
    "checkpoint.keep": ("save_total_limit", "max_checkpoints"),
    "trackers.use": ("report_to", "log_with"),
}
"""Last parts of names for each setting in other libraries, and in people's heads."""
IN_EVERY_RUN_FILE = "algorithm.advantage"
"""Setting by which run files are recognised: other files have no such key."""


def answer(name: str, known: Collection[str]) -> str | None:
    """
    Sentence for an unknown full key that is another name of a setting, or None.

    Args:
        known: Full keys of all settings in the file being read; a name for any other setting has no answer.
    """
    for removed, sentence in REMOVED.items():
        if name == removed or name.startswith(f"{removed}."):
            return sentence
    if (present := FORMER.get(name)) in known:
        return f"its name is {present!r}"
    return _from_verl(name, known) or _from_elsewhere(name.rpartition(".")[2], known)


def from_verl(name: str) -> str | None:
    """Setting of asyncrl for verl's ``name``, whole or shortened; None if there is none."""
    option = like(name)
    return option.settings[0] if option and option.settings else None


def _is_own(name: str, known: Collection[str]) -> bool:
    """True if only the section is wrong: ``trainer.kl_coef`` is `algorithm.kl_coef`, and no name of verl's."""
    section, _, word = name.rpartition(".")
    return (
        (not section or section in known)
        and like(word) is like(name)
        and word in {key.rpartition(".")[2] for key in known}
    )


def _from_elsewhere(word: str, known: Collection[str]) -> str | None:
    return next((f"did you mean {key!r}?" for key, words in ELSEWHERE.items() if word in words and key in known), None)


def _from_verl(name: str, known: Collection[str]) -> str | None:
    option = like(name)
    if option is None or IN_EVERY_RUN_FILE not in known or _is_own(name, known):
        return None
    if not option.settings:
        return f"that is verl's name, and asyncrl has no such setting: {option.note}"
    here = option.settings[0]
    if here not in known:
        return None
    return f"that is verl's name; here it is {here!r}" + (f": {option.note}" if option.note else "")
