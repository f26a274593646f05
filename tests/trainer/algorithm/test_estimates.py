"""Estimates of a step before its first update, worked by hand."""

import numpy as np
import pytest

from asyncrl.algo.outcomes import Outcome
from asyncrl.trainer.algorithm.estimates import BEHAVIOR, estimate
from asyncrl.trainer.algorithm.recipe import LOGPROBS, REFERENCE, VALUES, Recipe


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
