import pytest

from asyncrl.algo.losses.clip_cov import clip_cov
from asyncrl.errors import AsyncrlError
from tests.algo.losses.worked import of_ratios


def test_selected_tokens_are_left_out_and_the_others_clipped() -> None:
    tokens = of_ratios(1.0, 1.0, 2.0, 2.0, advantages=[1.0, 1.0, 1.0, -1.0], selected=[True, False, False, False])
    result = clip_cov(tokens, clip_low=0.2, clip_high=0.5)
    result.losses.sum().backward()

    assert result.losses.tolist() == pytest.approx([0.0, -1.0, -1.5, 2.0])
    assert tokens.logprobs.grad.tolist() == pytest.approx([0.0, -1.0, 0.0, 2.0])
    assert result.metrics["selected_fraction"].tolist() == [True, False, False, False]
    assert result.metrics["clip_fraction"].tolist() == [False, False, True, False]


def test_without_a_selection_it_refuses() -> None:
    with pytest.raises(AsyncrlError, match="treats some tokens apart"):
        clip_cov(of_ratios(1.0, advantages=[1.0]))
