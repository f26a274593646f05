"""
The setting that somebody meant by a key that does not exist.

    trainer.learning_rate ─▶ trainer.lr, by a name in use elsewhere
    learning.lr           ─▶ trainer.lr, the right name in a wrong section
    run.stepz             ─▶ run.steps, the nearest spelling

Names of verl's are answered by `asyncrl.tools.verl.names`.
"""

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin, get_type_hints

from asyncrl.config.sections.section import Section
from asyncrl.errors import ConfigError, mistakes

# ── names in use elsewhere ────────────────────────────────────────────────────────────────────

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
    "trainer.ranks": ("num_gpus", "gpus", "world_size", "num_processes"),
    "trainer.lora.rank": ("lora_r",),
    "rollout.replicas": ("num_rollouts", "num_engines", "vllm_num_engines"),
    "rollout.engine": ("use_vllm", "inference_backend"),
    "evaluation.every_versions": ("eval_steps", "eval_every", "eval_interval", "test_every"),
    "checkpoint.every_steps": ("save_steps", "save_every", "save_interval"),
    "checkpoint.keep": ("save_total_limit", "max_checkpoints"),
    "trackers.use": ("report_to", "log_with"),
}
"""Last parts of the names that each setting has in other libraries, and in people's heads."""


class UnknownSettings(ConfigError):
    """
    Full keys that no setting has; the message names the settings that were probably meant.

    Attributes:
        meant: What each of them may mean, in words.
        known: Full keys of all settings in the file that was read.
    """

    def __init__(self, meant: Mapping[str, str], known: Sequence[str]) -> None:
        super().__init__(mistakes(f"unknown key {name!r}: {words}" for name, words in meant.items()))
        self.meant = meant
        self.known = known


ALIKE = 0.85
"""Similarity from which a name is a typing error of one that another library has."""


def elsewhere(name: str, known: Collection[str]) -> str | None:
    """Sentence for a name that other libraries have for one of the ``known`` settings."""
    word = name.rpartition(".")[2]
    meant = {theirs: key for key, words in ELSEWHERE.items() if key in known for theirs in words}
    close = [word] if word in meant else difflib.get_close_matches(word, meant, n=1, cutoff=ALIKE)
    return f"did you mean {meant[close[0]]!r}?" if close else None


# ── suggestions ───────────────────────────────────────────────────────────────────────────────


def unknown(names: Iterable[str], root: type[Section]) -> UnknownSettings:
    """Error for full keys that are none of ``root``, with the settings that were probably meant."""
    known = [full for full, _ in fields(root)]
    return UnknownSettings({name: elsewhere(name, known) or _nearest(name, known) for name in names}, known)


def _nearest(name: str, names: Sequence[str]) -> str:
    *where, key = name.split(".")
    while where and ".".join(where) not in names:
        where.pop()
    if close := _meant(key, where, names):
        return f"did you mean {close!r}?"
    beside = [full.rpartition(".")[2] for full in names if full.rpartition(".")[0] == ".".join(where)]
    return f"expected one of: {', '.join(beside)}"


def fields(section: type[Section], where: str = "") -> Iterator[tuple[str, Any]]:
    """Full key and type of every setting and section below ``section``."""
    for key, kind in get_type_hints(section).items():
        yield f"{where}{key}", kind
        if inner := section_in(kind):
            yield from fields(inner, f"{where}{key}.NAME." if get_origin(kind) is dict else f"{where}{key}.")


def section_in(kind: Any) -> type[Section] | None:
    """Section type of a field, or of the items of a list or table; None for a plain value."""
    kinds = [kind, *get_args(kind)]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)


def _meant(key: str, where: Sequence[str], names: Sequence[str]) -> str | None:
    """Nearest full key. The right name in a wrong section is preferred: people forget the section more often."""
    elsewhere = {full.rpartition(".")[2]: full for full in reversed(names)}
    if key in elsewhere:
        return elsewhere[key]
    here = [full for full in names if full.startswith("".join(f"{part}." for part in where))]
    if close := difflib.get_close_matches(".".join((*where, key)), here, n=1):
        return close[0]
    return next((elsewhere[close] for close in difflib.get_close_matches(key, elsewhere, n=1)), None)
