from math import log

import pytest

from asyncrl.algo.losses.kl_cov import kl_cov
from tests.algo.losses.worked import of_ratios


def test_selected_tokens_pay_for_their_distance_and_nothing_is_clipped() -> None:
    tokens = of_ratios(2.0, 0.5, 2.0, advantages=[1.0, 1.0, 1.0], selected=[True, True, False])
    result = kl_cov(tokens, cov_kl_coef=3.0)
    result.losses.sum().backward()

    assert result.losses.tolist() == pytest.approx([3 * log(2) - 2, 3 * log(2) - 0.5, -2.0])
    assert tokens.logprobs.grad.tolist() == pytest.approx([3 - 2, -3 - 0.5, -2.0])
    assert result.metrics["selected_fraction"].tolist() == [True, True, False]


def test_on_policy_the_distance_has_no_direction() -> None:
    tokens = of_ratios(1.0, advantages=[0.0], selected=[True])
    kl_cov(tokens).losses.sum().backward()
    assert tokens.logprobs.grad.item() == 0.0
