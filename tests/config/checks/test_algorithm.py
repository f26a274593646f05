"""Settings of the algorithm that nothing reads, or that contradict each other, are refused in one sentence."""

from typing import Any

import pytest

from asyncrl.config.checks.check import algorithm_advice
from tests.config.configs import made, refused


@pytest.mark.parametrize(
    "algorithm",
    [
        {"advantage": "rloo", "loss": "gspo", "clip_low": 1e-3},
        {"advantage": "gdpo", "reward_weights": {"correct": 1.0}},
        {"loss": "dro", "dro_beta": 0.1},
        {"loss": "my.py:loss", "tau_pos": 2.0, "loss_options": {"power": 2.0}},
        {"kl_coef": 0.1, "kl": "k3+"},
        {"kl_coef": 0.1, "kl": "k1", "kl_in": "reward", "kl_target": 0.05, "kl_horizon": 500},
        {"kl_coef": 0.1, "kl": "k3+", "kl_in": "both", "kl_reward_coef": 0.2, "kl_reward": "k1", "kl_target": 0.05},
        {"advantage": "reinforce_plus_plus", "gamma": 0.99},
    ],
    ids=str,
)
def test_settings_that_go_together_are_accepted(algorithm: dict[str, Any]) -> None:
    made(algorithm=algorithm)


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        ({"advantage": "grpo2"}, "algorithm.advantage is 'grpo2': did you mean 'grpo'?"),
        ({"loss": "gsop"}, "algorithm.loss is 'gsop': did you mean 'gspo'?"),
        (
            {"loss_options": {"power": 2.0}},
            "algorithm.loss_options.power is an argument of a custom function, but algorithm.loss is 'clipped', which",
        ),
        (
            {"advantage_options": {"a": 1}, "loss": "my.py:f"},
            "algorithm.advantage_options.a is an argument of a custom",
        ),
        ({"kl": "k4", "kl_coef": 0.1}, "algorithm.kl is 'k4': "),
        ({"aggregation": "token_mean"}, "algorithm.aggregation is 'token_mean': did you mean 'token-mean'?"),
        ({"tau_pos": 2.0}, "algorithm.tau_pos is not read with advantage='grpo' and loss='clipped', only with sapo"),
        ({"gamma": 0.9}, "algorithm.gamma is not read with"),
        ({"loss": "gspo", "dual_clip": 3.0}, "algorithm.dual_clip is not read with"),
        ({"loss": "dro"}, "algorithm.dro_beta must be set with 'dro'"),
        ({"advantage": "gdpo"}, "algorithm.reward_weights must be set with 'gdpo'"),
        ({"loss": "gspo", "aggregation": "token-mean"}, "algorithm.aggregation is 'token-mean', but loss='gspo'"),
        ({"kl_in": "reward"}, "algorithm.kl_in is only read with algorithm.kl_coef above 0"),
        ({"kl_coef": 0.1, "kl_target": 0.1}, "algorithm.kl_target is only read with kl_in='reward' or 'both'"),
        ({"kl_coef": 0.1, "kl_in": "both"}, "algorithm.kl_in is 'both', but the KL in the reward has no weight; set"),
        ({"kl_coef": 0.1, "kl_reward_coef": 0.1}, "algorithm.kl_reward_coef is only read with kl_in='both'"),
        ({"kl_coef": 0.1, "kl_in": "reward", "kl_reward": "k2"}, "algorithm.kl_reward is only read with kl_in='both'"),
        (
            {"kl_coef": 0.1, "kl_in": "both", "kl_reward_coef": 0.1, "kl_reward": "k3+"},
            "algorithm.kl_reward is 'k3+': the '+' chooses a gradient, and a reward has none",
        ),
        (
            {"kl_coef": 0.1, "kl_in": "both", "kl_reward_coef": 0.1, "kl_reward": "k4"},
            "algorithm.kl_reward is 'k4': ",
        ),
        ({"kl_coef": 0.1, "kl_in": "reward", "kl": "k3+"}, "a reward has none"),
        ({"kl_coef": 0.1, "kl_in": "reward", "kl_target": 0.1, "kl_horizon": 25}, "use more than 25"),
        (
            {"advantage": "gdpo", "reward_weights": {"correct": 1.0}, "kl_coef": 0.1, "kl_in": "reward"},
            "has no effect with advantage='gdpo'",
        ),
    ],
    ids=str,
)
def test_settings_that_would_be_ignored_are_refused(algorithm: dict[str, Any], sentence: str) -> None:
    message = refused(algorithm=algorithm)
    assert sentence in message
    assert "\n" not in message


PLAIN = {"importance": "token", "importance_threshold": 1e6}


@pytest.mark.parametrize(
    ("algorithm", "staleness", "said"),
    [
        (
            {"loss": "reinforce"},
            1,
            "'reinforce' with no importance weights and schedule.staleness is 1",
        ),
        (
            {"loss": "gpg", "correction": PLAIN},
            4,
            "'gpg' with importance weights up to 1e+06 and sched",
        ),
        ({"loss": "cispo", "clip_high": 100}, 1, "'cispo' with importance weights up to 101"),
        ({"loss": "reinforce"}, 0, ""),
        ({"loss": "reinforce", "correction": {"preset": "bypass_pg_is"}}, 8, ""),
        ({"loss": "reinforce", "correction": {"preset": "bypass_pg_geo_rs"}}, 8, ""),
        ({"loss": "cispo", "clip_high": 4}, 8, ""),
        ({"loss": "dro", "dro_beta": 0.1}, 8, ""),
        ({"loss": "my.py:loss"}, 8, ""),
        ({"clip_high": 0.28}, 64, ""),
        ({}, 64, "schedule.staleness is 64, so the default of algorithm.clip_high is 4"),
        ({}, 1, ""),
    ],
    ids=str,
)
def test_weights_without_a_bound_and_a_default_for_old_trajectories_are_told_of_in_asynchronous_runs(
    algorithm: dict[str, Any], staleness: float, said: str
) -> None:
    sentences = algorithm_advice(made(algorithm=algorithm, schedule={"staleness": staleness}))
    assert len(sentences) == bool(said)
    assert all(said in sentence and "\n" not in sentence for sentence in sentences)


def corrected(loss: str = "clipped", **correction: Any) -> dict[str, Any]:
    return {"loss": loss, "correction": correction}


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        (
            corrected(preset="decoupled_geo_rs_tis"),
            "preset: there is no preset 'decoupled_geo_rs_tis'; did you mean 'decoupled_geo_rs_seq_tis'?",
        ),
        (
            corrected(preset="decoupled_geo_rs", rejection="token_k1"),
            "preset='decoupled_geo_rs' sets the whole section, but rejection is set beside it; remove one or the other",
        ),
        (
            corrected(preset="bypass_pg_is"),
            "preset='bypass_pg_is' needs algorithm.loss='reinforce', not 'clipped'; set it",
        ),
        (
            corrected("gspo", preset="bypass_ppo_clip_geo_rs"),
            "preset='bypass_ppo_clip_geo_rs' needs algorithm.loss='clipped', not 'gspo'; set it",
        ),
        (
            corrected(importance_threshold=2.0),
            "importance_threshold is only read with importance='token' or 'sequence'; remove it",
        ),
        (
            corrected(mode="decoupled", importance_normalize=True),
            "importance_normalize is only read with importance='token' or 'sequence'; remove it",
        ),
        (
            corrected(rejection="token_k1"),
            "rejection is only read with rejection_threshold; set it, or remove both",
        ),
        (
            corrected(rejection_threshold="0.5_2.0"),
            "rejection_threshold is only read with rejection; set it, or remove both",
        ),
        (
            corrected(rejection="token_k1,token_k2", rejection_threshold="1,2,3"),
            "rejection_threshold: expected one for each of token_k1, token_k2, or one for all, got 3",
        ),
        (
            corrected(mode="decoupled", importance="token", importance_threshold="5_0.5"),
            "importance_threshold is '5_0.5': the lower bound is above the upper one",
        ),
        (
            corrected("cispo", importance="token"),
            "importance='token' would weight the sampler's tokens twice: with mode='bypass' the ratio in loss='cispo' "
            "weights them already; use mode='decoupled', or loss='reinforce'",
        ),
        (
            corrected("reinforce", importance="token", importance_normalize=True),
            "importance_normalize needs the mean weight over a step, but with mode='bypass' weights change during the "
            "step; use mode='decoupled'",
        ),
    ],
    ids=lambda part: str(part)[:60],
)
def test_contradictory_corrections_are_refused_in_one_sentence(algorithm: dict[str, Any], sentence: str) -> None:
    assert refused(algorithm=algorithm) == f"algorithm.correction.{sentence}"


@pytest.mark.parametrize(
    "algorithm",
    [
        corrected(mode="decoupled"),
        corrected("gspo", mode="decoupled", importance="token", importance_threshold=3, importance_normalize=True),
        corrected("reinforce", importance="sequence"),
        corrected("my.py:loss", importance="sequence"),
        corrected("gspo", rejection="token_k1, seq_max_k3", rejection_threshold="1.5"),
        corrected("cispo", preset="sequence_tis_geometric_rs"),
        corrected("clipped", preset="bypass_ppo_clip"),
        corrected("reinforce", preset="bypass_pg_token_icepop"),
    ],
    ids=str,
)
def test_consistent_corrections_are_accepted(algorithm: dict[str, Any]) -> None:
    made(algorithm=algorithm)


def test_an_anchor_that_nothing_would_read_is_refused() -> None:
    several = {"steps_per_publish": 2}
    anchored = {"correction": {"mode": "decoupled", "anchor": "publish"}}
    assert made(algorithm=anchored, schedule=several).algorithm.correction.anchor == "publish"
    assert "no effect with schedule.steps_per_publish=1" in refused(algorithm=anchored)
    bypass = {"correction": {"anchor": "publish"}}
    assert "anchor='publish' is only read with mode='decoupled'" in refused(algorithm=bypass, schedule=several)
