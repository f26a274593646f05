"""Objective: advantage, policy loss, KL and off-policy correction. Settings that a loss does not read are left out."""

from collections.abc import Mapping

from asyncrl.tools.verl.overrides import OFF
from asyncrl.tools.verl.recipe import LaunchRecipe
from asyncrl.tools.verl.trainers import AUGUST, JUNE, NOVEMBER

PROXIMAL, RECORDED = "async_training.compute_prox_log_prob", "async_training.use_rollout_log_probs"
FORMER_CRITERIA = {"token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}
"""Present names of the criteria of November 2025, whose bounds were two options."""
A, R, CORRECTION = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "algorithm.rollout_correction"
CLIPS = ("clip_low", "clip_high")
LOSSES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "vanilla": ("clipped", (*CLIPS, "dual_clip")),
    "bypass_mode": ("clipped", (*CLIPS, "dual_clip")),
    "gspo": ("gspo", CLIPS),
    "cispo": ("cispo", CLIPS),
    "sapo": ("sapo", ("tau_pos", "tau_neg")),
    "geo_mean": ("gmpo", CLIPS),
    "clip_cov": ("clip_cov", (*CLIPS, "cov_ratio", "cov_low", "cov_high")),
    "kl_cov": ("kl_cov", ("cov_ratio", "cov_kl_coef")),
    "dppo_tv": ("dppo_tv", (*CLIPS, "ratio_cap")),
    "dppo_kl": ("dppo_kl", (*CLIPS, "ratio_cap")),
    "dro": ("dro", ("dro_beta",)),
    "gpg": ("reinforce", ()),
}
"""asyncrl's loss and the settings that it reads, by verl's name."""
BY_SEQUENCE = ("gspo", "gmpo", "sapo")
"""Losses that fix their aggregation: the mean over trajectories."""
VALUES: Mapping[str, tuple[str, float | None]] = {
    "clip_low": (f"{A}.clip_ratio_low", 0.2),
    "clip_high": (f"{A}.clip_ratio_high", 0.2),
    "dual_clip": (f"{A}.clip_ratio_c", 3.0),
    "ratio_cap": (f"{A}.clip_ratio_c", 3.0),
    "tau_pos": (f"{A}.tau_pos", 1.0),
    "tau_neg": (f"{A}.tau_neg", 1.05),
    "cov_low": (f"{A}.policy_loss.clip_cov_lb", 1.0),
    "cov_high": (f"{A}.policy_loss.clip_cov_ub", 5.0),
    "cov_kl_coef": (f"{A}.policy_loss.ppo_kl_coef", 0.1),
    "dro_beta": (f"{A}.policy_loss.dro_beta", None),
}
"""verl's option and its default, by asyncrl's setting."""
ADVANTAGES: Mapping[str, str] = {
    **{
        name: name
        for name in (
            "gae", "grpo", "grpo_passk", "gdpo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "rloo",
            "opo", "gpg", "optimal_token_baseline", "tir_optimal_token_baseline",
        )
    },
    "grpo_vectorized": "grpo",
    "rloo_vectorized": "rloo",
}  # fmt: skip


TRUNCATED = (
    "verl's bypass_mode compares the whole vocabulary with the part that top_p and top_k leave; to keep it, set "
    "sampling.replay_mask with a top_k"
)
KL_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "loss": tuple(f"{A}.{name}" for name in ("use_kl_loss", "kl_loss_coef", "kl_loss_type")),
    "reward": (
        "algorithm.use_kl_in_reward",
        "algorithm.kl_penalty",
        *(f"algorithm.kl_ctrl.{name}" for name in ("type", "kl_coef", "target_kl", "horizon")),
    ),
}
"""verl's options of the KL in the loss, and of the KL in the reward."""


def objective(recipe: LaunchRecipe) -> None:
    """Set the advantage, the loss, the KL, the correction, and the critic if there is one."""
    _advantage(recipe)
    _loss(recipe)
    _kl(recipe)
    _correction(recipe)
    _critic(recipe)


def _advantage(recipe: LaunchRecipe) -> None:
    name = recipe.get("algorithm.adv_estimator", "gae")
    if name not in ADVANTAGES:
        recipe.say(
            "algorithm.adv_estimator", "not supported", "write it as a function: algorithm.advantage = 'file.py:name'"
        )
        return
    divides = recipe.get("algorithm.norm_adv_by_std_in_grpo", True)
    here = "dr_grpo" if ADVANTAGES[name] == "grpo" and not divides else ADVANTAGES[name]
    recipe.put("algorithm.advantage", here, "" if "algorithm.adv_estimator" in recipe.given else "verl's default")
    for setting, readers in (("gamma", ("gae", "reinforce_plus_plus")), ("lam", ("gae",))):
        if here in readers:
            recipe.put(f"algorithm.{setting}", float(recipe.get(f"algorithm.{setting}", 1.0)))
        else:
            recipe.say(f"algorithm.{setting}", "not needed", f"the advantage {here!r} does not read it")
    if here == "gdpo":
        keys = recipe.get("algorithm.gdpo_reward_keys", ["reward"])
        recipe.put("algorithm.reward_weights", dict.fromkeys(keys, 1.0))


def _loss(recipe: LaunchRecipe) -> None:
    key = f"{A}.policy_loss.loss_mode"
    mode = recipe.get(key, "vanilla")
    if mode not in LOSSES:
        recipe.say(key, "not supported", "write it as a function: algorithm.loss = 'file.py:name'")
        return
    loss, reads = LOSSES[mode]
    recipe.put("algorithm.loss", loss)
    cov = f"{A}.policy_loss.{'kl_cov_ratio' if mode == 'kl_cov' else 'clip_cov_ratio'}"
    values = {**VALUES, "cov_ratio": (cov, 0.0002)}
    for setting in reads:
        option, default = values[setting]
        value = recipe.get(option, default)
        if setting in CLIPS and option in recipe.given and recipe.given[option].value is None:
            value = recipe.get(f"{A}.clip_ratio", 0.2)
        recipe.put(f"algorithm.{setting}", value, "" if option in recipe.given else "verl's default")
    for setting, (option, _) in values.items():
        if setting not in reads and not any(values[read][0] == option for read in reads):
            recipe.say(option, "not needed", f"the loss {loss!r} does not read it")
    _aggregation(recipe, loss)


def _aggregation(recipe: LaunchRecipe, loss: str) -> None:
    key, wanted = f"{A}.loss_agg_mode", recipe.get(f"{A}.loss_agg_mode", "token-mean")
    if loss in BY_SEQUENCE:
        recipe.say(key, "not needed", f"the loss {loss!r} is the mean over trajectories in both")
        return
    recipe.put("algorithm.aggregation", wanted)
    factor = recipe.get(f"{A}.loss_scale_factor")
    if factor and wanted == "seq-mean-token-sum-norm":
        recipe.put("algorithm.aggregation_norm", float(factor))
    else:
        recipe.say(f"{A}.loss_scale_factor", "not needed", f"{wanted!r} does not read it")


def _kl(recipe: LaunchRecipe) -> None:
    """Set the KL in the loss and in the reward, each only if its switch is on and its coefficient is not 0."""
    switches = {"loss": f"{A}.use_kl_loss", "reward": "algorithm.use_kl_in_reward"}
    weights = {"loss": f"{A}.kl_loss_coef", "reward": "algorithm.kl_ctrl.kl_coef"}
    coefficients = {
        place: float(recipe.get(weights[place], 0.001)) if recipe.get(switches[place], False) else 0.0
        for place in switches
    }
    if coefficients["loss"]:
        recipe.put("algorithm.kl_coef", coefficients["loss"])
        recipe.put("algorithm.kl", str(recipe.get(f"{A}.kl_loss_type", "low_var_kl")))
    if coefficients["reward"]:
        _kl_in_reward(recipe, coefficients["reward"], is_second=bool(coefficients["loss"]))
    for place, keys in KL_OPTIONS.items():
        for key in keys if not coefficients[place] else ():
            recipe.say(key, "not needed", f"there is no KL in the {place}: its switch or its coefficient is off")


def _kl_in_reward(recipe: LaunchRecipe, coefficient: float, *, is_second: bool) -> None:
    """Set the KL in the reward; ``is_second`` if there is one in the loss too."""
    recipe.put("algorithm.kl_in", "both" if is_second else "reward")
    recipe.put("algorithm.kl_reward_coef" if is_second else "algorithm.kl_coef", coefficient)
    estimator = str(recipe.get("algorithm.kl_penalty", "kl"))
    recipe.put("algorithm.kl_reward" if is_second else "algorithm.kl", estimator)
    if recipe.get("algorithm.kl_ctrl.type", "fixed") == "adaptive":
        recipe.put("algorithm.kl_target", float(recipe.get("algorithm.kl_ctrl.target_kl", 0.1)))
        recipe.put("algorithm.kl_horizon", int(recipe.get("algorithm.kl_ctrl.horizon", 10_000)))
    else:
        for name in ("type", "target_kl", "horizon"):
            recipe.say(f"algorithm.kl_ctrl.{name}", "not needed", "the weight of the KL does not adapt")


def _correction(recipe: LaunchRecipe) -> None:
    bypass = _is_bypass(recipe)
    is_anchored = recipe.get(PROXIMAL, False) if _is_former(recipe) else True
    if not bypass and is_anchored and recipe.settings["schedule.steps_per_publish"] > 1:
        recipe.put(
            "algorithm.correction.anchor", "publish", "verl keeps the weights of the last sync for all its steps"
        )
    is_reinforce = bypass and (
        recipe.get(f"{CORRECTION}.loss_type", "ppo_clip") == "reinforce"
        or recipe.get(f"{CORRECTION}.use_policy_gradient", False)
    )
    if is_reinforce:
        recipe.put("algorithm.loss", "reinforce", "rollout_correction's loss")
        for setting in ("clip_low", "clip_high", "dual_clip"):
            recipe.settings.pop(f"algorithm.{setting}", None)
    why = "with bypass_mode verl computes these weights for its metrics only: the loss has the ratio already"
    if not recipe.get(f"{CORRECTION}.rollout_is"):
        why = "there are no importance weights: rollout_is is off"
    elif is_reinforce or not bypass:
        _importance(recipe, bypass=bypass)
        why = ""
    for name in ("rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize") if why else ():
        recipe.say(f"{CORRECTION}.{name}", "not needed", why)
    _rejection(recipe)


def _is_former(recipe: LaunchRecipe) -> bool:
    """True for the fully asynchronous trainer of before August 2026, which has options of its own for the ratio."""
    return recipe.mode == "fully_async" and recipe.release != AUGUST


def _wants_bypass(recipe: LaunchRecipe) -> bool:
    if _is_former(recipe):
        why = f"verl's fully asynchronous trainer of {recipe.release} reads compute_prox_log_prob instead"
        recipe.say(f"{CORRECTION}.bypass_mode", "not needed", why)
        return bool(recipe.get(RECORDED, True) and not recipe.get(PROXIMAL, False))
    for key in (PROXIMAL, RECORDED):
        recipe.say(key, "not needed", f"this trainer of verl of {recipe.release} does not read it")
    recomputes = recipe.mode == "synchronous" or (recipe.mode == "one_step_off" and recipe.release in (JUNE, NOVEMBER))
    return bool(recipe.get(f"{CORRECTION}.bypass_mode", not recomputes))


def _is_bypass(recipe: LaunchRecipe) -> bool:
    """Set the correction's mode, and return True for bypass. Truncated sampling with staleness needs decoupled."""
    bypass = _wants_bypass(recipe)
    cuts = [
        key
        for key, is_cut in (
            (f"{R}.top_p", recipe.settings.get("sampling.top_p", 1.0) < 1),
            (f"{R}.top_k", recipe.settings.get("sampling.top_k", 0) > 0),
        )
        if is_cut and recipe.settings["schedule.staleness"]
    ]
    if not (bypass and cuts):
        recipe.put("algorithm.correction.mode", "bypass" if bypass else "decoupled")
        return bypass
    recipe.put("algorithm.correction.mode", "decoupled", TRUNCATED)
    for key in (f"{CORRECTION}.bypass_mode", *cuts):
        recipe.say(key, "substituted", f"algorithm.correction.mode = 'decoupled': {TRUNCATED}")
    return False


def _importance(recipe: LaunchRecipe, *, bypass: bool) -> None:
    level = str(recipe.get(f"{CORRECTION}.rollout_is"))
    if level not in ("token", "sequence"):
        why = f"weights are of a 'token' or of a 'sequence', not {level!r}; rollout_rs rejects by a geometric mean"
        recipe.say(f"{CORRECTION}.rollout_is", "not supported", why)
        return
    recipe.put("algorithm.correction.importance", level)
    threshold = recipe.get(f"{CORRECTION}.rollout_is_threshold") or 2.0
    recipe.put("algorithm.correction.importance_threshold", str(threshold))
    if recipe.get(f"{CORRECTION}.rollout_is_batch_normalize", False) and not bypass:
        recipe.put("algorithm.correction.importance_normalize", True)


def _rejection(recipe: LaunchRecipe) -> None:
    criteria, bounds = recipe.get(f"{CORRECTION}.rollout_rs"), recipe.get(f"{CORRECTION}.rollout_rs_threshold")
    if not criteria:
        recipe.say(f"{CORRECTION}.rollout_rs_threshold", "not needed", "nothing is rejected: rollout_rs is off")
        return
    if criteria in FORMER_CRITERIA:
        upper = float(bounds or recipe.get(f"{CORRECTION}.rollout_is_threshold", 2.0))
        lower = float(recipe.get(f"{CORRECTION}.rollout_rs_threshold_lower", 1 / upper))
        criteria, bounds = FORMER_CRITERIA[criteria], f"{lower:.6g}_{upper:.6g}"
    if bounds is None:
        recipe.say(
            f"{CORRECTION}.rollout_rs", "not supported", "verl refuses it without rollout_rs_threshold: give both"
        )
        return
    recipe.put("algorithm.correction.rejection", str(criteria))
    recipe.put("algorithm.correction.rejection_threshold", str(bounds))


def _critic(recipe: LaunchRecipe) -> None:
    options = {
        "path": ("critic.model.path", str),
        "lr": ("critic.optim.lr", float),
        "weight_decay": ("critic.optim.weight_decay", float),
        "grad_clip": ("critic.grad_clip", float),
        "value_clip": ("critic.cliprange_value", float),
    }
    if recipe.settings.get("algorithm.advantage") != "gae":
        for key in recipe.given:
            if key.startswith("critic."):
                recipe.say(key, "not needed", "only the advantage 'gae' has a critic")
        return
    for setting, (option, convert) in options.items():
        value = recipe.get(option)
        if setting == "grad_clip" and value is None:
            value = recipe.get("critic.optim.clip_grad")
        if value is not None:
            recipe.put(f"critic.{setting}", convert(value))
    for option, policys in SHARED_WITH_POLICY.items():
        value, other = recipe.get(option), recipe.get(policys)
        if value != other and not {str(value), str(other)} <= UNSET:
            recipe.say(option, "substituted", f"the critic has the policy's: {policys.rpartition('.')[2]} = {other}")


SHARED_WITH_POLICY: Mapping[str, str] = {
    **{
        f"critic.{name}": f"{A}.{name}"
        for name in (
            "optim.betas", "optim.lr_warmup_steps", "optim.lr_warmup_steps_ratio", "optim.lr_scheduler_type",
            "optim.warmup_style", "optim.min_lr_ratio", "ppo_epochs", "shuffle", "loss_agg_mode",
        )
    },
    **{
        f"critic.model.{name}": f"actor_rollout_ref.model.{name}"
        for name in ("lora_rank", "lora_alpha", "target_modules")
    },
}  # fmt: skip
"""verl's options of the critic that it shares with the policy here, and the policy's."""
UNSET = {str(value) for value in (*OFF, -1, 0.0, 1, "constant", [0.9, 0.999], "token-mean")}
"""Values that are verl's defaults of these options."""
