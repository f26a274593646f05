import numpy as np
import pytest

from asyncrl.algo.advantages.gae import gae, value_targets
from asyncrl.algo.outcomes import Outcome
from tests.algo.advantages.padded import gae_before_whitening, random_step


def outcome(values: list[float], score: float) -> Outcome:
    return Outcome(group_id=1, length=len(values), reward=score, values=np.array(values))


def test_surprises_are_summed_ahead_and_whitened() -> None:
    # surprises 0 + 2 - 1 = 1 and 5 - 2 = 3; ahead 1 + .5 * 3 = 2.5 and 3; mean 2.75, variance .125
    advantages = gae([outcome([1.0, 2.0], 5.0)], lam=0.5)[0]

    assert advantages == pytest.approx(np.array([-0.25, 0.25]) / np.sqrt(0.125))


def test_targets_are_from_before_whitening() -> None:
    targets = value_targets([outcome([1.0, 2.0], 5.0), outcome([], 1.0)], lam=0.5)

    assert [part.tolist() for part in targets] == [[3.5, 5.0], []]


def test_looking_ahead_to_the_end_the_targets_are_the_returns() -> None:
    rng = np.random.default_rng(0)

    targets = value_targets([outcome(rng.normal(size=4).tolist(), 8.0)], gamma=0.5, lam=1.0)

    assert targets[0] == pytest.approx([1.0, 2.0, 4.0, 8.0])


def test_looking_one_token_ahead_the_targets_are_the_next_values() -> None:
    assert value_targets([outcome([1.0, 2.0, 3.0], 8.0)], gamma=0.5, lam=0.0)[0] == pytest.approx([1.0, 1.5, 8.0])


def test_a_critic_that_is_right_teaches_exactly_nothing() -> None:
    assert gae([outcome([1.0, 1.0], 1.0), outcome([2.0], 2.0)])[0].tolist() == [0.0, 0.0]


def test_targets_are_those_of_the_formula_on_padded_rectangles() -> None:
    rng = np.random.default_rng(1)
    for _ in range(100):
        step = random_step(rng)
        gamma, lam = rng.choice([1.0, 0.9]), rng.choice([0.0, 0.95, 1.0])
        expected = gae_before_whitening(step, gamma, lam) + step.values

        for row, part in enumerate(value_targets(step.outcomes(), gamma=gamma, lam=lam)):
            kept = expected[row][step.mask[row] == 1]
            np.testing.assert_allclose(part, kept, rtol=1e-6, atol=1e-6 * max(1.0, np.abs(step.values).max()))
