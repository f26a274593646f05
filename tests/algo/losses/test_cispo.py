from math import log

import pytest

from asyncrl.algo.losses.cispo import cispo
from tests.algo.losses.worked import grad_of, of_ratios


def test_every_token_has_a_gradient_its_weight_is_what_is_cut() -> None:
    tokens = of_ratios(0.5, 1.0, 5.0, advantages=[1.0, 2.0, -1.0])
    result = cispo(tokens, clip_low=0.25, clip_high=0.5)
    result.losses.sum().backward()

    # weights .5 → .75, 1, 5 → 1.5; the old policy's probability is .1
    assert grad_of(tokens.logprobs).tolist() == pytest.approx([-0.75, -2.0, 1.5])
    assert result.losses.tolist() == pytest.approx([-0.75 * log(0.05), -2.0 * log(0.1), 1.5 * log(0.5)])
    assert result.metrics["clip_fraction"].tolist() == [True, False, True]


def test_there_is_no_lower_bound_by_default() -> None:
    tokens = of_ratios(0.01, advantages=[1.0])
    cispo(tokens).losses.sum().backward()
    assert grad_of(tokens.logprobs).item() == pytest.approx(-0.01)
