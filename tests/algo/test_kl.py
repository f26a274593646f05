from math import exp

import numpy as np
import pytest
import torch

from asyncrl.algo.kl import KL_ESTIMATORS


@pytest.mark.parametrize(
    ("name", "value", "grad"),
    [
        pytest.param("k1", 0.5, 1.0, id="k1 = d"),
        pytest.param("k2", 0.125, 0.5, id="k2 = d²/2, gradient d"),
        pytest.param("k3", exp(-0.5) - 0.5, 1 - exp(-0.5), id="k3 = e^-d + d - 1, gradient 1 - e^-d"),
        pytest.param("low_var_kl", exp(-0.5) - 0.5, 1 - exp(-0.5), id="low_var_kl is k3"),
    ],
)
def test_estimators_at_a_log_ratio_of_one_half(name, value, grad) -> None:
    logprobs = torch.tensor([-1.0], requires_grad=True)
    estimate = KL_ESTIMATORS[name](logprobs, torch.tensor([-1.5]))
    estimate.sum().backward()

    assert estimate.item() == pytest.approx(value, abs=1e-6)
    assert logprobs.grad.item() == pytest.approx(grad, abs=1e-6)


def test_k3_is_clamped_where_one_token_would_outweigh_the_batch() -> None:
    logprobs = torch.tensor([-100.0, -3.0, 0.0], requires_grad=True)
    estimate = KL_ESTIMATORS["k3"](logprobs, torch.tensor([0.0, 0.0, -100.0]))
    estimate.sum().backward()

    # log-ratios clamp to 20, 3, -20: e^20 - 21 and e^-20 + 19 are cut at 10; e^3 - 4 = 16.1 is, too
    assert estimate.tolist() == [10.0, 10.0, 10.0]
    assert logprobs.grad.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("name", KL_ESTIMATORS)
def test_values_and_gradients_match_the_formula_in_float64(name) -> None:
    random = np.random.default_rng(2)
    new, ref = -random.exponential(size=2000), -random.exponential(size=2000)
    d = new - ref
    c = np.clip(-d, -20, 20)
    value, grad = {
        "k1": (d, np.ones_like(d)),
        "k2": (d**2 / 2, d),
        "k3": (np.clip(np.exp(c) - c - 1, -10, 10), np.where(np.exp(c) - c - 1 > 10, 0.0, 1 - np.exp(c))),
    }[{"low_var_kl": "k3"}.get(name, name)]

    logprobs = torch.tensor(new, requires_grad=True)
    estimate = KL_ESTIMATORS[name](logprobs, torch.tensor(ref))
    estimate.sum().backward()

    np.testing.assert_allclose(estimate.detach(), value, atol=1e-6)
    np.testing.assert_allclose(logprobs.grad, grad, atol=1e-6)
