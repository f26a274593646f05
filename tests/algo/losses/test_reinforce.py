from math import log

import pytest

from asyncrl.algo.losses.reinforce import reinforce
from tests.algo.losses.worked import grad_of, of_ratios


def test_the_gradient_is_minus_the_advantage_whatever_the_ratio() -> None:
    tokens = of_ratios(1.0, 5.0, advantages=[2.0, -3.0])
    losses = reinforce(tokens).losses
    losses.sum().backward()
    assert losses.tolist() == pytest.approx([-2 * log(0.1), 3 * log(0.5)])
    assert grad_of(tokens.logprobs).tolist() == [-2.0, 3.0]
