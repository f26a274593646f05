import numpy as np
import pytest

from asyncrl.algo.advantage import ADVANTAGES, dr_grpo, grpo


def test_grpo_divides_by_the_sample_standard_deviation() -> None:
    # mean 0.25, deviations -.25 -.25 .75 -.25, squares sum to .75, std = sqrt(.75 / 3) = .5
    assert grpo([0.0, 0.0, 1.0, 0.0]) == pytest.approx([-0.5, -0.5, 1.5, -0.5], abs=1e-5)


def test_dr_grpo_only_centres() -> None:
    assert dr_grpo([0.0, 0.0, 1.0, 0.0]) == [-0.25, -0.25, 0.75, -0.25]


@pytest.mark.parametrize("estimate", ADVANTAGES.values(), ids=ADVANTAGES)
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, -1e9 / 3])
def test_equal_rewards_teach_exactly_nothing(estimate, reward) -> None:
    """Exactly: the trainer leaves out what is zero, and a rounding error divided by 1e-6 would be a signal."""
    assert estimate([reward] * 7) == [0.0] * 7


def test_a_single_trajectory_keeps_its_reward() -> None:
    assert grpo([3.0]) == pytest.approx([3.0], rel=2e-6)
    assert dr_grpo([3.0]) == [3.0]


def test_advantages_match_the_formula_on_ragged_random_groups() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        rewards = random.normal(scale=10.0 ** random.integers(-2, 3), size=random.integers(2, 20))
        centred = rewards - rewards.mean()
        assert dr_grpo(rewards.tolist()) == pytest.approx(centred, rel=1e-6, abs=1e-9)
        assert grpo(rewards.tolist()) == pytest.approx(centred / (rewards.std(ddof=1) + 1e-6), rel=1e-6, abs=1e-9)
