from math import exp

import pytest

from asyncrl.algo.losses.sapo import sapo
from tests.algo.losses.worked import grad_of, of_ratios


def test_on_policy_it_is_the_plain_policy_gradient() -> None:
    tokens = of_ratios(1.0, 1.0, advantages=[2.0, -3.0])
    losses = sapo(tokens, tau_pos=1.0, tau_neg=2.0).losses
    losses.sum().backward()

    # 4/τ · sigmoid(0) = 2/τ, and its slope is 1 whatever τ
    assert losses.tolist() == pytest.approx([-4.0, 3.0])
    assert grad_of(tokens.logprobs).tolist() == pytest.approx([-2.0, 3.0])


def test_the_gate_falls_on_both_sides_and_sooner_for_bad_tokens() -> None:
    tokens = of_ratios(3.0, 3.0, 0.2, advantages=[1.0, -1.0, 1.0])
    sapo(tokens, tau_pos=1.0, tau_neg=2.0).losses.sum().backward()

    def weight(ratio: float, tau: float) -> float:
        gate = 1 / (1 + exp(-tau * (ratio - 1)))
        return 4 * gate * (1 - gate) * ratio

    good, bad, fallen = grad_of(tokens.logprobs).tolist()
    assert good == pytest.approx(-weight(3.0, 1.0))
    assert bad == pytest.approx(weight(3.0, 2.0))
    assert fallen == pytest.approx(-weight(0.2, 1.0))
    assert bad < -good < 3.0
