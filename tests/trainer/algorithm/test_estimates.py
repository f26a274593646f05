"""Estimates of a step before its first update, worked by hand."""

import numpy as np
import pytest

from asyncrl.algo.outcomes import Outcome
from asyncrl.config.catalogue import ADVANTAGES
from asyncrl.config.correction import PRESETS
from asyncrl.trainer.algorithm.estimates import BEHAVIOR, estimate
from asyncrl.trainer.algorithm.recipe import LOGPROBS, REFERENCE, SUM_PI_SQUARED, TOKEN_REWARDS, VALUES, Recipe


def outcomes(*rewards: float, length: int = 2) -> list[Outcome]:
    return [Outcome(group_id=0, length=length, reward=reward) for reward in rewards]


def rows(*rows: list[float]) -> list[np.ndarray]:
    return [np.array(row) for row in rows]


def test_a_kl_in_the_reward_is_taken_before_the_group_is_compared(config):
    recipe = Recipe(config(algorithm={"advantage": "dr_grpo", "kl_coef": 0.5, "kl_in": "reward", "kl": "k1"}))
    per_token = {
        LOGPROBS: rows([-1.0, -1.0], [-1.0, -1.0]),
        REFERENCE: rows([-1.2, -1.4], [-1.0, -1.0]),
    }
    found = estimate(recipe, outcomes(1.0, 0.0), per_token, kl_coef=0.5)

    # the first trajectory's KL is .2 + .4, so its reward is 1 - .3, and the mean .35
    assert found.advantages[0] == pytest.approx([0.35, 0.35])
    assert found.advantages[1] == pytest.approx([-0.35, -0.35])
    assert found.metrics["kl_in_reward"] == pytest.approx((0.3 + 0.0) / 2)
    assert found.metrics["kl_coef"] == 0.5


def test_a_rejected_trajectory_is_left_out_of_the_loss_and_not_of_its_group(config):
    correction = {"mode": "decoupled", "rejection": "seq_mean_k1", "rejection_threshold": "0.5_2.0"}
    recipe = Recipe(config(algorithm={"advantage": "dr_grpo", "correction": correction}))
    per_token = {
        LOGPROBS: rows([-1.0, -1.0], [-1.0, -1.0]),
        BEHAVIOR: rows([-1.0, -1.1], [-3.0, -3.0]),
    }
    found = estimate(recipe, outcomes(1.0, 0.0), per_token)

    assert found.keep is not None
    assert [keep.tolist() for keep in found.keep] == [[True, True], [False, False]]
    assert found.advantages[0] == pytest.approx([0.5, 0.5])
    assert (found.num_tokens(1), found.num_kept(1)) == (2, 0)
    assert found.metrics["rollout_corr/rollout_rs_seq_masked_fraction"] == 0.5


def test_a_critic_gets_value_targets(config):
    recipe = Recipe(config(algorithm={"advantage": "gae"}))
    found = estimate(recipe, outcomes(1.0, 0.0), {VALUES: rows([0.2, 0.4], [0.2, 0.4])})

    assert found.value_targets is not None
    assert [target.tolist() for target in found.value_targets] == [[1.0, 1.0], [0.0, 0.0]]


def test_rejected_tokens_are_in_no_mean_over_tokens(config):
    """Whitened over the three tokens that are kept, whose returns are 1, 0 and 0."""
    correction = {"mode": "decoupled", "rejection": "token_k1", "rejection_threshold": "0.5_2.0"}
    recipe = Recipe(config(algorithm={"advantage": "reinforce_plus_plus", "correction": correction}))
    per_token = {
        LOGPROBS: rows([-1.0, -1.0], [-1.0, -1.0]),
        BEHAVIOR: rows([-3.0, -1.0], [-1.0, -1.0]),
    }
    found = estimate(recipe, outcomes(1.0, 0.0), per_token)

    deviation = (1 / 3) ** 0.5
    assert found.advantages[0] == pytest.approx([0.0, (2 / 3) / deviation], abs=1e-6)
    assert found.advantages[1] == pytest.approx([(-1 / 3) / deviation] * 2, abs=1e-6)
    assert [found.kept(place).tolist() for place in (0, 1)] == [[False, True], [True, True]]


def test_a_penalty_on_a_rejected_token_still_counts_in_its_group(config):
    correction = {"mode": "decoupled", "rejection": "token_k1", "rejection_threshold": "0.5_2.0"}
    algorithm = {"advantage": "dr_grpo", "kl_coef": 0.5, "kl_in": "reward", "kl": "k1", "correction": correction}
    per_token = {
        LOGPROBS: rows([-1.0, -1.0], [-1.0, -1.0]),
        REFERENCE: rows([-1.2, -1.4], [-1.0, -1.0]),
        BEHAVIOR: rows([-3.0, -1.0], [-1.0, -1.0]),
    }
    found = estimate(Recipe(config(algorithm=algorithm)), outcomes(1.0, 0.0), per_token, kl_coef=0.5)
    assert found.advantages[0] == pytest.approx([0.0, 0.35])


def test_rewards_alone_are_enough_without_per_token_numbers(config):
    found = estimate(Recipe(config()), outcomes(1.0, 1.0, 0.0), {})
    assert (found.importance, found.keep, found.value_targets, found.metrics) == (None, None, None, {})
    assert found.advantages[0].shape == (2,)


EPISODES = {"function": "unused.py:Unused"}


def test_a_reward_of_a_turn_is_a_return_of_the_tokens_before_it(config):
    recipe = Recipe(config(algorithm={"advantage": "gae"}, environment=EPISODES))
    assert recipe.reads_token_rewards
    per_token = {VALUES: rows([0.0] * 4, [0.0] * 2), TOKEN_REWARDS: rows([0.0, 0.5, 0.0, 1.0], [0.0, 0.25])}
    outcomes = [Outcome(group_id=0, length=4, reward=1.5), Outcome(group_id=0, length=2, reward=0.25)]
    found = estimate(recipe, outcomes, per_token)

    assert found.value_targets is not None
    assert [targets.tolist() for targets in found.value_targets] == [[1.5, 1.5, 1.0, 1.0], [0.25, 0.25]]


@pytest.mark.parametrize("advantage", ["grpo", "rloo", "remax", "optimal_token_baseline"])
def test_other_estimators_see_totals_only(config, advantage: str):
    assert not Recipe(config(algorithm={"advantage": advantage}, environment=EPISODES)).reads_token_rewards


def test_without_an_environment_no_rewards_of_tokens_are_read(config):
    assert not Recipe(config(algorithm={"advantage": "gae"})).reads_token_rewards


def test_the_reward_of_a_rejected_token_goes_to_the_kept_one_before_it(config):
    correction = {"mode": "decoupled", "rejection": "token_k1", "rejection_threshold": "0.5_2.0"}
    algorithm = {"advantage": "gae", "correction": correction, "kl_coef": 0.5, "kl_in": "reward", "kl": "k1"}
    recipe = Recipe(config(algorithm=algorithm, environment=EPISODES))
    per_token = {
        LOGPROBS: rows([-1.0] * 5),
        REFERENCE: rows([-1.2] * 5),  # a penalty of .1 for each token
        BEHAVIOR: rows([-9.0, -1.0, -9.0, -1.0, -9.0]),
        VALUES: rows([0.0] * 5),
        TOKEN_REWARDS: rows([8.0, 0.0, 1.0, 0.0, 2.0]),
    }
    found = estimate(recipe, [Outcome(group_id=0, length=5, reward=11.0)], per_token, kl_coef=0.5)

    assert found.value_targets is not None
    last = 2.0 - 2 * 0.1
    assert found.value_targets[0].tolist() == pytest.approx([0.0, 1.0 - 2 * 0.1 + last, 0.0, last, 0.0])


@pytest.mark.parametrize("importance", ["", "token", "sequence"])
@pytest.mark.parametrize("num_kept", [0, 1, 2, 3])
@pytest.mark.parametrize("advantage", ADVANTAGES)
def test_every_estimator_takes_a_step_that_keeps_few_tokens_or_none(config, advantage, num_kept, importance):
    correction = {"mode": "decoupled", "rejection": "token_k1", "rejection_threshold": "0.5_2.0"}
    weights = {"reward_weights": {"reward": 1.0}} if advantage == "gdpo" else {}
    correction |= {"importance": importance} if importance else {}
    recipe = Recipe(config(algorithm={"advantage": advantage, "correction": correction, **weights}))
    sampled = [-1.0] * num_kept + [-9.0] * (4 - num_kept)
    per_token = {
        LOGPROBS: rows([-1.0, -1.0], [-1.0, -1.0]),
        BEHAVIOR: rows(sampled[:2], sampled[2:]),
        VALUES: rows([0.5, 0.25], [0.5, 0.25]),
        SUM_PI_SQUARED: rows([0.5, 0.5], [0.5, 0.5]),
    }
    step = [Outcome(group_id=0, length=2, reward=reward, baseline=0.5) for reward in (1.0, 0.0)]
    found = estimate(recipe, step, per_token)

    assert [found.num_kept(place) for place in (0, 1)] == [min(num_kept, 2), max(num_kept - 2, 0)]
    assert all(np.isfinite(one).all() for one in found.advantages)
    assert not any(one[~found.kept(place)].any() for place, one in enumerate(found.advantages))
    assert all(np.isfinite(value) for value in found.metrics.values())


@pytest.mark.parametrize("preset", PRESETS)
def test_every_correction_takes_a_step_without_a_token(config, preset):
    recipe = Recipe(config(algorithm={"loss": PRESETS[preset].loss or "gspo", "correction": {"preset": preset}}))
    per_token = {LOGPROBS: rows([], []), BEHAVIOR: rows([], [])}
    assert [len(one) for one in estimate(recipe, outcomes(1.0, 0.0, length=0), per_token).advantages] == [0, 0]
