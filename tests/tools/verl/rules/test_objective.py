"""Advantage, loss, KL and correction: what verl computes, and nothing that a loss would not read."""

from typing import Any

import pytest

from tests.tools.verl.launches import fate, settings

A, CORRECTION = "actor_rollout_ref.actor", "algorithm.rollout_correction"


def algorithm(*options: str, mode: Any = "fully_async") -> dict[str, Any]:
    found = settings(mode, *options)
    return {key.removeprefix("algorithm."): value for key, value in found.items() if key.startswith("algorithm.")}


def test_the_clipped_loss_has_verls_bounds() -> None:
    found = algorithm(f"{A}.clip_ratio_high=0.28", f"{A}.clip_ratio_c=10.0")
    assert (found["loss"], found["clip_low"], found["clip_high"], found["dual_clip"]) == ("clipped", 0.2, 0.28, 10.0)


def test_clip_ratio_counts_where_a_bound_is_null() -> None:
    found = algorithm(f"{A}.clip_ratio=0.3", f"{A}.clip_ratio_low=null")
    assert (found["clip_low"], found["clip_high"]) == (0.3, 0.2)


def test_a_setting_that_the_loss_does_not_read_is_left_out_and_said() -> None:
    options = (f"{A}.policy_loss.loss_mode=gspo", f"{A}.loss_agg_mode=token-mean", f"{A}.clip_ratio_c=10.0")
    found = algorithm(*options)
    assert found["loss"] == "gspo"
    assert not {"dual_clip", "aggregation"} & found.keys()
    assert fate("fully_async", options[2], options[0])[1] == "the loss 'gspo' does not read it"


@pytest.mark.parametrize(
    ("mode", "loss", "setting", "value"),
    [
        ("kl_cov", "kl_cov", "cov_kl_coef", 0.1),
        ("clip_cov", "clip_cov", "cov_ratio", 0.0002),
        ("sapo", "sapo", "tau_neg", 1.05),
        ("dppo_tv", "dppo_tv", "ratio_cap", 3.0),
        ("geo_mean", "gmpo", "clip_low", 0.2),
    ],
)
def test_a_loss_has_verls_name_or_ours_and_verls_defaults(mode: str, loss: str, setting: str, value: float) -> None:
    found = algorithm(f"{A}.policy_loss.loss_mode={mode}")
    assert (found["loss"], found[setting]) == (loss, value)


def test_grpo_without_division_is_dr_grpo() -> None:
    assert algorithm("algorithm.norm_adv_by_std_in_grpo=False")["advantage"] == "dr_grpo"


def test_an_unknown_estimator_or_loss_is_not_supported() -> None:
    assert fate("fully_async", "algorithm.adv_estimator=mine")[0] == "not supported"
    assert fate("fully_async", f"{A}.policy_loss.loss_mode=mine")[0] == "not supported"


def test_gae_is_verls_default_and_has_a_critic() -> None:
    found = settings("synchronous", "algorithm.adv_estimator=null", "critic.optim.lr=2e-5", "critic.model.path=value")
    assert found["algorithm.advantage"] == "gae"
    assert (found["algorithm.lam"], found["critic.lr"], found["critic.path"]) == (1.0, 2e-5, "value")


def test_a_critic_that_nobody_trains_is_left_out() -> None:
    assert fate("synchronous", "critic.optim.lr=2e-5") == ("not needed", "only the advantage 'gae' has a critic")


def test_a_kl_that_is_off_is_left_out() -> None:
    found = algorithm(f"{A}.use_kl_loss=False", f"{A}.kl_loss_coef=0.001", "algorithm.kl_ctrl.kl_coef=0.1")
    assert not [key for key in found if key.startswith("kl")]


def test_a_kl_is_in_the_loss_in_the_reward_or_in_both() -> None:
    in_loss = (f"{A}.use_kl_loss=True", f"{A}.kl_loss_coef=0.02", f"{A}.kl_loss_type=low_var_kl")
    in_reward = ("algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.kl_coef=0.01")
    assert algorithm(*in_loss)["kl_coef"] == 0.02
    alone = algorithm(*in_reward)
    assert (alone["kl_in"], alone["kl_coef"], alone["kl"]) == ("reward", 0.01, "kl")
    both = algorithm(*in_loss, *in_reward)
    assert (both["kl_in"], both["kl_coef"], both["kl_reward_coef"], both["kl_reward"]) == ("both", 0.02, 0.01, "kl")


def test_an_adaptive_kl_has_its_target() -> None:
    found = algorithm(
        "algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.horizon=500"
    )
    assert (found["kl_target"], found["kl_horizon"]) == (0.1, 500)


@pytest.mark.parametrize(
    ("mode", "correction"), [("fully_async", "bypass"), ("one_step_off", "bypass"), ("synchronous", "decoupled")]
)
def test_the_denominator_is_that_of_verls_trainer(mode: str, correction: str) -> None:
    assert algorithm(mode=mode)["correction.mode"] == correction


def test_weights_under_bypass_are_left_out_because_verl_only_reports_them() -> None:
    option = f"{CORRECTION}.rollout_is=sequence"
    found = algorithm(option, f"{CORRECTION}.rollout_rs=seq_mean_k1", f"{CORRECTION}.rollout_rs_threshold=0.99_1.001")
    assert "correction.importance" not in found
    assert found["correction.rejection"] == "seq_mean_k1"
    assert fate("fully_async", option)[0] == "not needed"


def test_stale_tokens_of_truncated_sampling_are_decoupled_and_it_is_said() -> None:
    option = "actor_rollout_ref.rollout.top_p=0.95"
    assert algorithm(option)["correction.mode"] == "decoupled"
    assert fate("fully_async", option)[0] == "substituted"
    assert algorithm(option, "async_training.staleness_threshold=0")["correction.mode"] == "bypass"


def test_a_rejection_without_a_threshold_is_refused_as_in_verl() -> None:
    assert fate("fully_async", f"{CORRECTION}.rollout_rs=seq_mean_k1")[0] == "not supported"


def test_decoupled_weights_are_kept() -> None:
    options = ("bypass_mode=False", "rollout_is=token", "rollout_is_threshold=2.0", "rollout_is_batch_normalize=true")
    found = algorithm(*(f"{CORRECTION}.{option}" for option in options))
    assert found["correction.mode"] == "decoupled"
    assert (found["correction.importance"], found["correction.importance_threshold"]) == ("token", "2.0")
    assert found["correction.importance_normalize"] is True


def test_decoupled_ratios_of_several_steps_are_against_the_published_weights() -> None:
    option = f"{CORRECTION}.bypass_mode=False"
    assert algorithm(option)["correction.anchor"] == "publish"
    assert "correction.anchor" not in algorithm(option, "async_training.trigger_parameter_sync_step=1")
    assert "correction.anchor" not in algorithm()


def test_bypass_with_reinforce_keeps_its_weights() -> None:
    found = algorithm(f"{CORRECTION}.loss_type=reinforce", f"{CORRECTION}.rollout_is=token")
    assert (found["loss"], found["correction.importance"]) == ("reinforce", "token")
    assert "clip_low" not in found
