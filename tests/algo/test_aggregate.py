from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from asyncrl.algo.aggregate import Ragged, Totals, combined, effective_sample_size, log_sums, resolve_aggregation
from asyncrl.config.catalogue import AGGREGATIONS
from tests.algo.losses.padded import Padded, aggregated, group_of_rows, random_padded, slope
from tests.algo.losses.worked import grad_of


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        # trajectories with losses (1, 2) and (3, 4, 5): sums 3 and 12, means 1.5 and 4
        pytest.param("token-mean", 3.0, id="token-mean: 15 / 5"),
        pytest.param("token-sum", 15.0, id="token-sum"),
        pytest.param("seq-mean-token-sum", 7.5, id="seq-mean-token-sum: (3 + 12) / 2"),
        pytest.param("seq-mean-token-sum-norm", 0.75, id="seq-mean-token-sum-norm: the same / 10"),
        pytest.param("seq-mean-token-mean", 2.75, id="seq-mean-token-mean: (1.5 + 4) / 2"),
        pytest.param("prompt-mean", 3.0, id="prompt-mean of one prompt: 15 / 5"),
    ],
)
def test_two_trajectories_by_hand(name: str, loss: float) -> None:
    weigh, totals = resolve_aggregation(name), Totals(num_tokens=5, num_trajectories=2, norm=10.0, group_tokens=5)
    assert 3 * weigh(2, totals) + 12 * weigh(3, totals) == pytest.approx(loss)


def test_two_prompts_of_one_trajectory_each_by_hand() -> None:
    weigh = resolve_aggregation("prompt-mean")
    first, second = (Totals(5, 2, num_groups=2, group_tokens=tokens) for tokens in (2, 3))
    assert 3 * weigh(2, first) + 12 * weigh(3, second) == pytest.approx((1.5 + 4) / 2)


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        # the same two, and a third trajectory of which every token was rejected
        ("token-mean", 3.0),
        ("token-sum", 15.0),
        ("seq-mean-token-sum", 5.0),
        ("seq-mean-token-sum-norm", 0.5),
        ("seq-mean-token-mean", 5.5 / 3),
    ],
)
def test_a_trajectory_without_tokens_counts_among_trajectories(name: str, loss: float) -> None:
    weigh, totals = resolve_aggregation(name), Totals(num_tokens=5, num_trajectories=3, norm=10.0)
    assert 3 * weigh(2, totals) + 12 * weigh(3, totals) + 0 * weigh(0, totals) == pytest.approx(loss)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_a_step_without_tokens_divides_by_nothing(name: str) -> None:
    assert np.isfinite(resolve_aggregation(name)(0, Totals(num_tokens=0, num_trajectories=0, norm=1.0)))


# ── test effective sample size ────────────────────────────────────────────────────────────────
# Effective sample size of importance weights.


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


# ── test ragged ───────────────────────────────────────────────────────────────────────────────

SEQUENCES = Ragged([2, 0, 3])
VALUES = torch.tensor([1.0, 3.0, -2.0, 4.0, 4.0])


def test_every_token_knows_its_sequence() -> None:
    assert len(SEQUENCES) == 3
    assert SEQUENCES.index.tolist() == [0, 0, 2, 2, 2]
    assert SEQUENCES.spread(torch.tensor([5.0, 6.0, 7.0])).tolist() == [5.0, 5.0, 7.0, 7.0, 7.0]


def test_sums_means_and_maxima_are_per_sequence_and_defined_for_an_empty_one() -> None:
    assert SEQUENCES.sum(VALUES).tolist() == [4.0, 0.0, 6.0]
    assert SEQUENCES.mean(VALUES).tolist() == [2.0, 0.0, 2.0]
    assert SEQUENCES.max(VALUES).tolist() == [3.0, -torch.inf, 4.0]


def test_a_mean_carries_the_gradient_to_its_tokens() -> None:
    values = VALUES.clone().requires_grad_()
    SEQUENCES.mean(values)[0].backward()
    assert values.grad is not None
    assert values.grad.tolist() == [0.5, 0.5, 0.0, 0.0, 0.0]


# ── by name ─────────────────────────────────────────────────────────────────────────────────────
# Every aggregation, its value and its gradient, against the formula on a rectangle with a mask.


NORM = 37.0


def weights_of(name: str, batch: Padded) -> NDArray[np.float64]:
    groups = group_of_rows(len(batch.mask))
    tokens = np.bincount(groups, batch.lengths)
    whole = Totals(int(batch.mask.sum()), len(batch.mask), norm=NORM, num_groups=len(tokens))
    return np.array(
        [
            resolve_aggregation(name)(int(length), replace(whole, group_tokens=int(tokens[group])))
            for length, group in zip(batch.lengths, groups, strict=True)
        ]
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", AGGREGATIONS)
def test_values_and_gradients_match_the_masked_formula_in_float64(name: str, seed: int) -> None:
    """Some trajectories have no token, of some every token is a tool's: they count, and add nothing."""
    batch = random_padded(seed)
    assert (batch.lengths == 0).sum() >= 2
    weights = weights_of(name, batch)

    losses = batch.flat(batch.logprobs, requires_grad=True)
    step = torch.dot(losses, torch.tensor(np.repeat(weights, batch.lengths)))
    step.backward()

    assert step.item() == pytest.approx(aggregated(name, batch.logprobs, batch.mask, NORM).sum(), rel=1e-6)
    gradient = slope(lambda rectangle: aggregated(name, rectangle, batch.mask, NORM), batch.logprobs)[batch.mask]
    np.testing.assert_allclose(grad_of(losses).numpy(), gradient, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_a_step_cut_in_two_adds_up_to_the_step(name: str) -> None:
    batch = random_padded(0)
    sums = (batch.logprobs * batch.mask).sum(1)
    weights = weights_of(name, batch)
    parts = [np.dot(weights[rows], sums[rows]) for rows in (slice(0, 7), slice(7, None))]
    assert sum(parts) == pytest.approx(aggregated(name, batch.logprobs, batch.mask, NORM).sum(), rel=1e-6)
