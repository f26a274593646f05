"""What is known of a step before the first gradient, worked by hand."""

import numpy as np
import pytest

from asyncrl.algo.outcomes import Outcome
from asyncrl.trainer.algorithm.estimates import BEHAVIOR, estimate
from asyncrl.trainer.algorithm.recipe import LOGPROBS, REFERENCE, VALUES, Recipe


def outcomes(*scores: float, length: int = 2) -> list[Outcome]:
    return [Outcome(group_id=0, length=length, reward=score) for score in scores]


def column(*rows: list[float]) -> list[np.ndarray]:
    return [np.array(row) for row in rows]


def test_a_kl_in_the_reward_is_taken_before_the_group_is_compared(config) -> None:
    recipe = Recipe(config(algorithm={"advantage": "dr_grpo", "kl_coef": 0.5, "kl_in": "reward", "kl": "k1"}))
    columns = {
        LOGPROBS: column([-1.0, -1.0], [-1.0, -1.0]),
        REFERENCE: column([-1.2, -1.4], [-1.0, -1.0]),
    }
    found = estimate(recipe, outcomes(1.0, 0.0), columns, kl_coef=0.5)

    # the first trajectory's KL is .2 + .4, so its reward is 1 - .3, and the mean .35
    assert found.advantages[0] == pytest.approx([0.35, 0.35])
    assert found.advantages[1] == pytest.approx([-0.35, -0.35])
    assert found.metrics["kl_in_reward"] == pytest.approx((0.3 + 0.0) / 2)
    assert found.metrics["kl_coef"] == 0.5


def test_what_is_rejected_is_left_out_of_the_loss_and_not_of_its_group(config) -> None:
    correction = {"mode": "decoupled", "rejection": "seq_mean_k1", "rejection_threshold": "0.5_2.0"}
    recipe = Recipe(config(algorithm={"advantage": "dr_grpo", "correction": correction}))
    columns = {
        LOGPROBS: column([-1.0, -1.0], [-1.0, -1.0]),
        BEHAVIOR: column([-1.0, -1.1], [-3.0, -3.0]),
    }
    found = estimate(recipe, outcomes(1.0, 0.0), columns)

    assert [keep.tolist() for keep in found.keep] == [[True, True], [False, False]]
    assert found.advantages[0] == pytest.approx([0.5, 0.5])
    assert (found.size(1), found.length(1)) == (2, 0)
    assert found.metrics["rollout_corr/rollout_rs_seq_masked_fraction"] == 0.5


def test_a_critic_is_told_what_it_should_have_said(config) -> None:
    recipe = Recipe(config(algorithm={"advantage": "gae"}))
    found = estimate(recipe, outcomes(1.0, 0.0), {VALUES: column([0.2, 0.4], [0.2, 0.4])})

    assert [target.tolist() for target in found.value_targets] == [[1.0, 1.0], [0.0, 0.0]]


def test_what_is_rejected_is_in_no_mean_over_tokens(config) -> None:
    """Whitened over the three tokens that are kept, whose returns are 1, 0 and 0."""
    correction = {"mode": "decoupled", "rejection": "token_k1", "rejection_threshold": "0.5_2.0"}
    recipe = Recipe(config(algorithm={"advantage": "reinforce_plus_plus", "correction": correction}))
    columns = {
        LOGPROBS: column([-1.0, -1.0], [-1.0, -1.0]),
        BEHAVIOR: column([-3.0, -1.0], [-1.0, -1.0]),
    }
    found = estimate(recipe, outcomes(1.0, 0.0), columns)

    deviation = (1 / 3) ** 0.5
    assert found.advantages[0] == pytest.approx([0.0, (2 / 3) / deviation], abs=1e-6)
    assert found.advantages[1] == pytest.approx([(-1 / 3) / deviation] * 2, abs=1e-6)
    assert [found.kept(place).tolist() for place in (0, 1)] == [[False, True], [True, True]]


def test_a_fine_on_a_rejected_token_still_counts_in_its_group(config) -> None:
    correction = {"mode": "decoupled", "rejection": "token_k1", "rejection_threshold": "0.5_2.0"}
    algorithm = {"advantage": "dr_grpo", "kl_coef": 0.5, "kl_in": "reward", "kl": "k1", "correction": correction}
    columns = {
        LOGPROBS: column([-1.0, -1.0], [-1.0, -1.0]),
        REFERENCE: column([-1.2, -1.4], [-1.0, -1.0]),
        BEHAVIOR: column([-3.0, -1.0], [-1.0, -1.0]),
    }
    found = estimate(Recipe(config(algorithm=algorithm)), outcomes(1.0, 0.0), columns, kl_coef=0.5)
    assert found.advantages[0] == pytest.approx([0.0, 0.35])


def test_without_columns_scores_are_enough(config) -> None:
    found = estimate(Recipe(config()), outcomes(1.0, 1.0, 0.0), {})
    assert (found.importance, found.keep, found.value_targets, found.metrics) == (None, None, None, {})
    assert found.advantages[0].shape == (2,)
