"""
verl's trainers and its own configurations, and the release that a launch is read as.

    python3 -m recipe.dapo.main_dapo  ─▶ `TrainerModule`: mode, releases, what its configuration sets
    options that only some releases have  ─▶ `Release`, by which other options keep or change their meaning

Facts are those of verl at the end of June and November 2025, of January and of August 2026, and of its recipes.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from msgspec import Struct

Mode = Literal["fully_async", "one_step_off", "synchronous"]
"""Schedule of a trainer; ``main_ppo`` is ``synchronous``, whatever its ``trainer.v1.trainer_mode``."""
Release = Literal["June 2025", "November 2025", "January 2026", "August 2026"]
RELEASES: Sequence[Release] = ("June 2025", "November 2025", "January 2026", "August 2026")
"""Releases that can be told apart, the oldest first."""
JUNE, NOVEMBER, JANUARY, AUGUST = RELEASES


class TrainerModule(Struct, frozen=True, kw_only=True):
    """One of verl's trainers, by its module."""

    name: str
    """Words for it in messages."""
    module: str
    """Pattern of the end of its module, after a dot or at the start."""
    mode: Mode
    releases: Sequence[Release] = RELEASES
    """Releases that have it under this module."""
    config: tuple[str, ...] = ()
    """Options that its own configuration sets."""
    filters: bool = False
    """True if it reads ``algorithm.filter_groups`` in all releases; ``main_ppo`` does in the newest alone."""
    lacks: str = ""
    """Work of its own that nothing here does, and what to do; empty if its options tell all."""
    note: str = ""
    """Difference from what is done here, if the run works all the same."""


DAPO = ("reward_model.reward_manager=dapo", "reward_model.overlong_buffer.enable=False")
OWN_LOSS = "its loss is code of the recipe: write it as a function, algorithm.loss = 'file.py:name': docs/algorithms.md"
TRAINERS: Sequence[TrainerModule] = (
    TrainerModule(
        name="one_step_off_policy as its pull request 2231 proposed it",
        module=r"recipe\.async\.async_main_ppo",
        mode="one_step_off",
        releases=(JUNE,),
    ),
    TrainerModule(
        name="one_step_off_policy",
        module=r"recipe\.one_step_off\w*\.\w+",
        mode="one_step_off",
        releases=(NOVEMBER,),
    ),
    TrainerModule(
        name="one_step_off_policy", module=r"(\w+\.)*one_step_off\w*\.\w+", mode="one_step_off",
        releases=(JANUARY, AUGUST),
    ),
    TrainerModule(
        name="fully_async_policy", module=r"recipe\.fully_async_policy\.\w+", mode="fully_async", releases=(NOVEMBER,)
    ),
    TrainerModule(
        name="fully_async_policy", module=r"(\w+\.)*fully_async\w*(\.\w+)?", mode="fully_async",
        releases=(JANUARY, AUGUST),
    ),
    TrainerModule(name="main_dapo", module=r"(\w+\.)*main_dapo", mode="synchronous", config=DAPO, filters=True),
    TrainerModule(
        name="main_entropy", module=r"(\w+\.)*main_entropy", mode="synchronous", config=DAPO, filters=True
    ),
    TrainerModule(
        name="main_flowrl", module=r"(\w+\.)*main_flowrl", mode="synchronous", config=DAPO, filters=True,
        lacks=f"FlowRL trains for trajectory balance, with a network of its own; {OWN_LOSS}",
    ),
    TrainerModule(
        name="main_prime", module=r"(\w+\.)*main_prime", mode="synchronous",
        config=("algorithm.adv_estimator=rloo", "actor_rollout_ref.rollout.n=4", "data.truncation=right",
                "actor_rollout_ref.actor.entropy_coeff=0.001", "trainer.val_before_train=False"),
        lacks="PRIME trains an implicit reward model with the policy, which asyncrl does not; use algorithm.advantage "
        "= 'rloo' with the rewards of answers alone, which its options reward_model.* do not describe",
    ),
    TrainerModule(
        name="main_spin", module=r"(\w+\.)*main_spin", mode="synchronous", lacks=f"SPIN trains on pairs; {OWN_LOSS}"
    ),
    TrainerModule(
        name="main_sppo", module=r"(\w+\.)*main_sppo", mode="synchronous",
        lacks=f"SPPO fits log-ratios to win rates; {OWN_LOSS}",
    ),
    TrainerModule(
        name="spo_main_ppo", module=r"(\w+\.)*spo_main_ppo", mode="synchronous",
        lacks="SPO keeps a value of each prompt between steps; write the advantage as a function: "
        "algorithm.advantage = 'file.py:name'",
    ),
    TrainerModule(
        name="gvpo_main_ppo", module=r"(\w+\.)*gvpo_main_ppo", mode="synchronous", lacks=f"GVPO: {OWN_LOSS}"
    ),
    TrainerModule(
        name="main_gkd", module=r"(\w+\.)*main_gkd", mode="synchronous",
        lacks="it distils from a teacher, which asyncrl does not",
    ),
    TrainerModule(
        name="main_dance", module=r"(\w+\.)*main_dance", mode="synchronous",
        lacks="DanceGRPO trains models that make videos; asyncrl trains language models",
    ),
    TrainerModule(
        name="vla.main_ppo", module=r"(\w+\.)*vla\.main_ppo", mode="synchronous",
        lacks="it trains models that move robots; asyncrl trains language models",
    ),
    TrainerModule(
        name="main_atropos", module=r"(\w+\.)*main_atropos", mode="synchronous",
        lacks="Atropos samples and scores outside verl; write its environment as a class: docs/environments.md",
    ),
    TrainerModule(
        name="partial_rollout.main_ppo", module=r"(\w+\.)*partial_rollout\.main_ppo", mode="synchronous",
        note="completions that are cut at a step's end go on in the next one in verl; here a step waits for its groups",
    ),
    TrainerModule(
        name="main_ppo", module=r"(\w+\.)*main_ppo\w*", mode="synchronous",
    ),
)  # fmt: skip
"""Trainers in the order in which a module is compared with them."""
OTHER_PROGRAMS = re.compile(r"(\w+\.)*(\w*sft_trainer\w*|main_generation\w*|main_eval\w*|model_merger|legacy_\w+)")
"""Modules of verl that do not train by reinforcement."""


def trainer_of(module: str) -> TrainerModule | None:
    """The entry of a module, such as ``verl.trainer.main_ppo``; None if no table has it."""
    return next((trainer for trainer in TRAINERS if re.fullmatch(trainer.module, module)), None)


def unknown_trainer(module: str, keys: Collection[str]) -> TrainerModule:
    """An entry for a module that no table has, with the mode that the sections of its options tell."""
    return TrainerModule(name=module, module=re.escape(module), mode=mode_of(keys))


def mode_of(keys: Collection[str]) -> Mode:
    """Mode that options tell by their sections."""
    sections = {key.partition(".")[0] for key in keys}
    if "async_training" in sections or "rollout.total_rollout_steps" in keys:
        return "fully_async"
    return "one_step_off" if "rollout" in sections else "synchronous"


# ── release ───────────────────────────────────────────────────────────────────────────────────

OLD: Sequence[Release] = (NOVEMBER, JANUARY)
ONLY_IN: Mapping[str, Sequence[Release]] = {
    "reward": (AUGUST,),
    "distillation": (AUGUST,),
    "trainer.use_v1": (AUGUST,),
    "trainer.v1": (AUGUST,),
    "actor_rollout_ref.rollout.disaggregation": (AUGUST,),
    "async_training.concurrent_samples_per_replica": (AUGUST,),
    "async_training.use_dynamic_resource_scheduling": (AUGUST,),
    "async_training.compute_prox_log_prob": OLD,
    "async_training.use_rollout_log_probs": OLD,
    "async_training.checkpoint_engine": (JANUARY,),
    "rollout.total_epochs": OLD,
    "rollout.test_freq": OLD,
    "rollout.n_gpus": (JUNE,),
    "actor_rollout_ref.rollout.n_gpus": (JUNE,),
    "algorithm.rollout_correction.rollout_rs_threshold_lower": (NOVEMBER,),
    "algorithm.rollout_correction.rollout_token_veto_threshold": (NOVEMBER,),
    "algorithm.rollout_correction.use_policy_gradient": (NOVEMBER,),
    "algorithm.rollout_correction": (NOVEMBER, JANUARY, AUGUST),
    "critic.model.fsdp_config": (JUNE, NOVEMBER, JANUARY),
    "reward_model.overlong_buffer": (JUNE, NOVEMBER, JANUARY),
    "reward_model.launch_reward_fn_async": (JUNE, NOVEMBER, JANUARY),
    "reward_model.strategy": (JUNE, NOVEMBER, JANUARY),
    "trainer.use_legacy_worker_impl": OLD,
}
"""Releases that have an option, or those below a section, for options that not all have."""


def release_of(trainer: TrainerModule, keys: Collection[str]) -> Release:
    """
    Newest release that has the trainer and these options.

    If no release has them all, options count in the order of their age: the newest release of most of them.
    """
    rows = [releases for key in keys for name, releases in ONLY_IN.items() if key == name or key.startswith(f"{name}.")]
    votes = {release: sum(release in releases for releases in rows) for release in trainer.releases}
    most = max(votes.values())
    return next(release for release in reversed(trainer.releases) if votes[release] == most)


# ── configurations ────────────────────────────────────────────────────────────────────────────
# What verl's own configurations set in place of the defaults of ppo_trainer, where it matters here.

MEGATRON = ("model_engine=megatron",)
MULTI_TURN = (
    "data.max_prompt_length=1024", "data.max_response_length=1024", "data.train_batch_size=256",
    "actor_rollout_ref.rollout.name=sglang", "actor_rollout_ref.rollout.multi_turn.enable=True",
)  # fmt: skip
TURNS = "actor_rollout_ref.rollout.multi_turn.max_assistant_turns="
PICTURES = tuple(option.replace("=1024", "=2048") for option in MULTI_TURN)
CONFIGS: Mapping[str, tuple[str, ...]] = {
    "ppo_trainer": (),
    "ppo_megatron_trainer": MEGATRON,
    "one_step_off_ppo_trainer": (),
    "one_step_off_ppo_megatron_trainer": MEGATRON,
    "fully_async_ppo_trainer": (),
    "fully_async_ppo_megatron_trainer": MEGATRON,
    "dapo_trainer": DAPO,
    "dapo_megatron_trainer": (*DAPO, *MEGATRON),
    "dapo_qat_trainer": (*DAPO, "actor_rollout_ref.actor.fsdp_config.qat.enable=True"),
    "dapo_qat_megatron_trainer": (*DAPO, *MEGATRON, "actor_rollout_ref.actor.qat.enable=True"),
    "dapo_transfer_queue_trainer": DAPO,
    "rm_config": ("reward_model.reward_manager=dapo",),
    "transfer_queue_ppo_trainer": (),
    "transfer_queue_ppo_megatron_trainer": MEGATRON,
    "fault_recover_ppo_megatron_trainer": MEGATRON,
    "gsm8k_multiturn_grpo": (*MULTI_TURN, f"{TURNS}5"),
    "gsm8k_multiturn_grpo_server": (*MULTI_TURN, f"{TURNS}5"),
    "gsm8k_multiturn_megatron_grpo": (*MULTI_TURN, f"{TURNS}5", *MEGATRON),
    "gsm8k_multiturn_grpo_w_interaction": (*MULTI_TURN, "actor_rollout_ref.rollout.multi_turn.max_user_turns=5"),
    "retool_multiturn_grpo": (
        *MULTI_TURN, f"{TURNS}5",
        "actor_rollout_ref.rollout.multi_turn.tool_config_path=./config/tool_config/sandbox_fusion_tool_config.yaml",
    ),
    "search_multiturn_grpo": (*MULTI_TURN, f"{TURNS}2", "data.shuffle=False"),
    "search_multiturn_grpo_one_step_off": (*MULTI_TURN, f"{TURNS}2", "data.shuffle=False"),
    "geo3k_multiturn_grpo": (*PICTURES, f"{TURNS}5"),
    "geo3k_multiturn_megatron_grpo": (*PICTURES, f"{TURNS}5", *MEGATRON),
    "deepeyes_multiturn_grpo": (
        *PICTURES, f"{TURNS}5", "data.custom_cls.path=recipe/deepeyes/deepeyes.py",
        "actor_rollout_ref.rollout.multi_turn.tool_config_path=recipe/deepeyes/config/image_zoom_in_tool_config.yaml",
        "custom_reward_function.path=recipe/deepeyes/deepeyes.py",
    ),
}  # fmt: skip
"""Options by the name of the configuration."""
