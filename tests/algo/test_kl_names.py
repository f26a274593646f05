"""Every KL estimator, its value and its gradient, against the formula on a rectangle with a mask."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from asyncrl.algo.kl import resolve_kl
from asyncrl.config.catalogue import KL_ESTIMATORS
from tests.algo.losses.padded import random_padded, slope
from tests.algo.losses.worked import grad_of


def _k3(d):
    c = np.clip(-d, -20, 20)
    return np.clip(np.exp(c) - c - 1, -10, 10)


FORMULAS: dict[str, Callable[[Any], Any]] = {
    "k1": lambda d: d,
    "kl": lambda d: d,
    "abs": np.abs,
    "k2": lambda d: d**2 / 2,
    "mse": lambda d: d**2 / 2,
    "k3": _k3,
    "low_var_kl": _k3,
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("suffix", ["", "+"])
@pytest.mark.parametrize("name", KL_ESTIMATORS)
def test_values_and_gradients_match_the_masked_formula_in_float64(name: str, suffix: str, seed: int) -> None:
    batch = random_padded(seed)
    reference = batch.old_logprobs
    differentiated = FORMULAS["k2" if suffix else name]

    logprobs = batch.flat(batch.logprobs, requires_grad=True)
    estimate = resolve_kl(name + suffix)(logprobs, batch.flat(reference))
    estimate.sum().backward()

    value = FORMULAS[name](batch.logprobs - reference)[batch.mask]
    gradient = slope(lambda new: differentiated(new - reference) * batch.mask, batch.logprobs)[batch.mask]
    np.testing.assert_allclose(estimate.detach().numpy(), value, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(grad_of(logprobs).numpy(), gradient, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("suffix", ["", "+"])
@pytest.mark.parametrize("name", KL_ESTIMATORS)
def test_log_ratios_of_200_leave_float32_finite(name: str, suffix: str) -> None:
    logprobs = torch.tensor([0.0, -200.0], requires_grad=True)
    estimate = resolve_kl(name + suffix)(logprobs, torch.tensor([-200.0, 0.0]))
    estimate.sum().backward()
    assert torch.isfinite(estimate).all()
    assert torch.isfinite(grad_of(logprobs)).all()
