"""Effective sample size of importance weights."""

import pytest
import torch

from asyncrl.algo.effective_sample_size import combined, effective_sample_size, log_sums


def ess(weights: list[float]) -> float:
    return float(effective_sample_size(log_sums(torch.tensor(weights).log())))


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([1.0], 1.0),
        ([0.3, 0.3, 0.3], 1.0),
        ([1.0, 3.0], 16 / (2 * 10)),
        ([1.0, 1.0, 1.0, 0.0], 0.75),
    ],
)
def test_it_is_the_squared_sum_over_n_times_the_sum_of_squares(weights: list[float], expected: float) -> None:
    assert ess(weights) == pytest.approx(expected)


def test_one_weight_that_outweighs_all_others_leaves_one_sample() -> None:
    assert ess([1e30, 1.0, 1.0, 1.0]) == pytest.approx(1 / 4)


def test_no_log_weight_overflows() -> None:
    log_weights = torch.tensor([500.0, 500.0, -500.0, -500.0], dtype=torch.float64)
    assert float(effective_sample_size(log_sums(log_weights))) == pytest.approx(0.5)


def test_the_sums_of_parts_are_those_of_the_whole() -> None:
    log_weights = torch.randn(12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parts = [log_sums(part) for part in (log_weights[:5], log_weights[:0], log_weights[5:])]
    torch.testing.assert_close(combined(torch.stack(parts)), log_sums(log_weights))
