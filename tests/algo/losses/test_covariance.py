from math import log

import pytest

from asyncrl.algo.losses.covariance import clip_cov, kl_cov
from asyncrl.errors import AsyncrlError
from tests.algo.losses.worked import grad_of, of_ratios


def test_clip_cov_leaves_selected_tokens_out_and_clips_the_others() -> None:
    tokens = of_ratios(1.0, 1.0, 2.0, 2.0, advantages=[1.0, 1.0, 1.0, -1.0], selected=[True, False, False, False])
    result = clip_cov(tokens, clip_low=0.2, clip_high=0.5)
    result.losses.sum().backward()

    assert result.losses.tolist() == pytest.approx([0.0, -1.0, -1.5, 2.0])
    assert grad_of(tokens.logprobs).tolist() == pytest.approx([0.0, -1.0, 0.0, 2.0])
    assert result.metrics["selected_fraction"].tolist() == [True, False, False, False]
    assert result.metrics["clip_fraction"].tolist() == [False, False, True, False]


def test_clip_cov_without_a_selection_is_refused() -> None:
    with pytest.raises(AsyncrlError, match="this loss reads is_selected"):
        clip_cov(of_ratios(1.0, advantages=[1.0]))


def test_kl_cov_penalizes_the_distance_of_selected_tokens_and_clips_nothing() -> None:
    tokens = of_ratios(2.0, 0.5, 2.0, advantages=[1.0, 1.0, 1.0], selected=[True, True, False])
    result = kl_cov(tokens, cov_kl_coef=3.0)
    result.losses.sum().backward()

    assert result.losses.tolist() == pytest.approx([3 * log(2) - 2, 3 * log(2) - 0.5, -2.0])
    assert grad_of(tokens.logprobs).tolist() == pytest.approx([3 - 2, -3 - 0.5, -2.0])
    assert result.metrics["selected_fraction"].tolist() == [True, True, False]


def test_on_policy_the_distance_has_no_direction() -> None:
    tokens = of_ratios(1.0, advantages=[0.0], selected=[True])
    kl_cov(tokens).losses.sum().backward()
    assert grad_of(tokens.logprobs).item() == 0.0
