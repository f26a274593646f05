from collections.abc import Callable
from math import exp
from typing import Any

import numpy as np
import pytest
import torch

from asyncrl.algo.kl import KlController, resolve_kl
from asyncrl.config.catalogue import KL_ESTIMATORS
from asyncrl.errors import ConfigError
from tests.algo.losses.padded import random_padded, slope
from tests.algo.losses.worked import grad_of


@pytest.mark.parametrize(
    ("name", "value", "grad"),
    [
        pytest.param("k1", 0.5, 1.0, id="k1 = d"),
        pytest.param("abs", 0.5, 1.0, id="abs = |d|"),
        pytest.param("k2", 0.125, 0.5, id="k2 = d²/2, gradient d"),
        pytest.param("k3", exp(-0.5) - 0.5, 1 - exp(-0.5), id="k3 = e^-d + d - 1, gradient 1 - e^-d"),
        pytest.param("k1+", 0.5, 0.5, id="k1+ = d, gradient of k2"),
        pytest.param("k3+", exp(-0.5) - 0.5, 0.5, id="k3+ = e^-d + d - 1, gradient of k2"),
        pytest.param("low_var_kl", exp(-0.5) - 0.5, 1 - exp(-0.5), id="low_var_kl is k3"),
    ],
)
def test_estimators_at_a_log_ratio_of_one_half(name: str, value: float, grad: float) -> None:
    logprobs = torch.tensor([-1.0], requires_grad=True)
    estimate = resolve_kl(name)(logprobs, torch.tensor([-1.5]))
    estimate.sum().backward()

    assert estimate.item() == pytest.approx(value, abs=1e-6)
    assert grad_of(logprobs).item() == pytest.approx(grad, abs=1e-6)


def test_k3_is_clamped_where_one_token_would_outweigh_the_batch() -> None:
    logprobs = torch.tensor([-100.0, -3.0, 0.0], requires_grad=True)
    estimate = resolve_kl("k3")(logprobs, torch.tensor([0.0, 0.0, -100.0]))
    estimate.sum().backward()

    # log-ratios clamp to 20, 3, -20: e^20 - 21 and e^-20 + 19 are cut at 10; e^3 - 4 = 16.1 is, too
    assert estimate.tolist() == [10.0, 10.0, 10.0]
    assert grad_of(logprobs).tolist() == [0.0, 0.0, 0.0]


def test_with_the_gradient_of_k2_a_clamped_token_still_comes_back() -> None:
    logprobs = torch.tensor([-30.0, 0.0], requires_grad=True)
    estimate = resolve_kl("low_var_kl+")(logprobs, torch.tensor([0.0, -30.0]))
    estimate.sum().backward()

    assert estimate.tolist() == [10.0, 10.0]
    assert grad_of(logprobs).tolist() == [-30.0, 30.0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("low_var", r"algorithm.kl is 'low_var': did you mean 'low_var_kl'\?"),
        ("k3++", r"algorithm.kl is 'k3\+': did you mean 'k3'\?"),
        ("full", "expected one of: k1, kl, abs, k2, mse, k3, low_var_kl"),
        ("", "expected one of"),
    ],
)
def test_an_unknown_name_is_refused_with_what_there_is(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_kl(name)


# ── test kl controller ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kl", "coef"),
    [
        pytest.param(0.05, 0.1, id="on target: as it is"),
        pytest.param(0.055, 0.105, id="a tenth above, half a horizon: up by a twentieth"),
        pytest.param(0.045, 0.095, id="a tenth below: down by a twentieth"),
        pytest.param(5.0, 0.11, id="far above: a fifth of half a horizon"),
        pytest.param(0.0, 0.09, id="far below: the same down"),
        pytest.param(-1.0, 0.09, id="an estimate may be negative"),
    ],
)
def test_the_coefficient_moves_towards_its_target(kl: float, coef: float) -> None:
    controller = KlController(coef=0.1, target=0.05, horizon=1000)
    controller.update(kl, num_trajectories=500)
    assert controller.coef == pytest.approx(coef)


def test_without_a_target_it_is_fixed() -> None:
    controller = KlController(coef=0.1)
    controller.update(7.0, num_trajectories=10**9)
    assert controller.coef == 0.1


def test_a_kl_that_is_no_number_leaves_it_as_it_is() -> None:
    controller = KlController(coef=0.1, target=0.05, horizon=1000)
    controller.update(float("nan"), num_trajectories=100)
    assert controller.coef == 0.1


def test_it_goes_on_from_the_coefficient_that_was_kept() -> None:
    whole = KlController(coef=0.1, target=0.05, horizon=1000)
    whole.update(0.1, num_trajectories=100)
    resumed = KlController(coef=whole.coef, target=0.05, horizon=1000)
    whole.update(0.01, num_trajectories=100)
    resumed.update(0.01, num_trajectories=100)
    assert resumed == whole


def test_it_holds_a_policy_whose_kl_falls_with_the_coefficient_at_the_target() -> None:
    controller = KlController(coef=1.0, target=0.05, horizon=1000)
    for _ in range(500):
        controller.update(0.01 / controller.coef, num_trajectories=200)
    assert controller.coef == pytest.approx(0.2, rel=1e-3)


def test_a_horizon_that_one_step_uses_up_is_refused() -> None:
    controller = KlController(coef=0.1, target=0.05, horizon=100)
    with pytest.raises(ConfigError, match=r"kl_horizon is 100, but a step has 500 trajectories.*more than 100"):
        controller.update(0.05, num_trajectories=500)


# ── by name ─────────────────────────────────────────────────────────────────────────────────────
# Every KL estimator, its value and its gradient, against the formula on a rectangle with a mask.


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
