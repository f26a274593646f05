from math import exp, log

import pytest

from asyncrl.algo.losses.dro import dro
from tests.algo.losses.worked import grad_of, of_ratios


def test_a_quadratic_holds_the_token_to_the_old_policy() -> None:
    tokens = of_ratios(exp(0.5), advantages=[2.0])
    losses = dro(tokens, dro_beta=3.0).losses
    losses.sum().backward()

    # -(2 (log .1 + .5) - 3/2 · .25), and -(2 - 3 · .5)
    assert losses.item() == pytest.approx(-2 * (log(0.1) + 0.5) + 0.375)
    assert grad_of(tokens.logprobs).item() == pytest.approx(-0.5)


def test_it_rests_where_the_log_ratio_is_the_advantage_over_beta() -> None:
    tokens = of_ratios(exp(0.5), advantages=[2.0])
    dro(tokens, dro_beta=4.0).losses.sum().backward()
    assert grad_of(tokens.logprobs).item() == pytest.approx(0.0, abs=1e-12)
