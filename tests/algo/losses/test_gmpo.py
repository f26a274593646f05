from math import exp, log, sqrt

import pytest

from asyncrl.algo.losses.gmpo import gmpo
from tests.algo.losses.worked import grad_of, of_ratios


def test_a_trajectory_has_one_loss_made_of_the_geometric_mean_of_its_ratios() -> None:
    tokens = of_ratios(1.2, 0.9, 1.1, advantages=[2.0, 2.0, -1.0], lengths=[2, 1])
    losses = gmpo(tokens).losses
    losses.sum().backward()

    # two tokens with loss -2 sqrt(1.08) each; either ratio moves both of them by half
    assert losses.tolist() == pytest.approx([-2 * sqrt(1.08), -2 * sqrt(1.08), 1.1])
    assert grad_of(tokens.logprobs).tolist() == pytest.approx([-2 * sqrt(1.08), -2 * sqrt(1.08), 1.1])


def test_a_token_is_cut_only_where_the_step_was_already_taken() -> None:
    tokens = of_ratios(2.0, 0.5, 2.0, 0.5, advantages=[1.0, 1.0, -1.0, -1.0], lengths=[2, 2])
    result = gmpo(tokens, clip_low=0.1, clip_high=0.3)
    result.losses.sum().backward()

    # means of log-ratios (0.3 - log 2)/2 and (log 2 - 0.1)/2
    good, bad = exp((0.3 - log(2)) / 2), exp((log(2) - 0.1) / 2)
    assert result.losses.tolist() == pytest.approx([-good, -good, bad, bad])
    assert grad_of(tokens.logprobs).tolist() == pytest.approx([0.0, -good, bad, 0.0])
    assert result.metrics["clip_fraction"].tolist() == [True, False, False, True]
