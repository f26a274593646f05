import pytest

from asyncrl.algo.losses.ratio import FLOAT32_LOG_RATIO, MAX_LOG_RATIO, log_ratio
from tests.algo.losses.worked import of_ratios


def test_within_its_bound_it_is_the_difference_and_flat_beyond() -> None:
    tokens = of_ratios(1e-12, 2.0, 1e12, advantages=[0.0] * 3)
    bounded = log_ratio(tokens)
    bounded.sum().backward()
    assert bounded.tolist() == pytest.approx([-MAX_LOG_RATIO, 0.6931471805599453, MAX_LOG_RATIO])
    assert tokens.logprobs.grad.tolist() == [0.0, 1.0, 0.0]


def test_the_wide_bound_keeps_what_float32_can_hold() -> None:
    tokens = of_ratios(1e12, 1e40, advantages=[0.0] * 2)
    assert log_ratio(tokens, FLOAT32_LOG_RATIO).tolist() == pytest.approx([27.631021115928547, FLOAT32_LOG_RATIO])
    assert log_ratio(tokens, FLOAT32_LOG_RATIO).float().exp().isfinite().all()
