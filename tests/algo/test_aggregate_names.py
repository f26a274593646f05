"""Every aggregation, its value and its gradient, against the formula on a rectangle with a mask."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from asyncrl.algo.aggregate import Totals, resolve_aggregation
from asyncrl.config.catalogue import AGGREGATIONS
from tests.algo.losses.padded import Padded, aggregated, group_of_rows, random_padded, slope
from tests.algo.losses.worked import grad_of

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
