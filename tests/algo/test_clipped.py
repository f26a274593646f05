from math import log

import numpy as np
import pytest
import torch

from asyncrl.algo.clipped import clipped_loss
from asyncrl.errors import AsyncrlError

BOUNDS = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0}


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "grad"),
    [
        pytest.param(1.0, 2.0, -2.0, -2.0, id="on policy: plain policy gradient"),
        pytest.param(1.2, 2.0, -2.4, -2.4, id="good token up 20%: still pushed"),
        pytest.param(1.5, 2.0, -2.56, 0.0, id="good token already up 28%: no push"),
        pytest.param(0.5, 2.0, -1.0, -1.0, id="good token that went down: full push up"),
        pytest.param(0.5, -2.0, 1.6, 0.0, id="bad token already down 20%: no push"),
        pytest.param(1.5, -2.0, 3.0, 3.0, id="bad token that went up: full push down"),
        pytest.param(4.0, -2.0, 6.0, 0.0, id="bad token up fourfold: the dual clip holds"),
        pytest.param(4.0, 0.0, 0.0, 0.0, id="no advantage: nothing"),
    ],
)
def test_clip_binds_only_when_the_step_was_already_taken(ratio, advantage, loss, grad) -> None:
    logprobs = torch.tensor([log(ratio) - 1.0], requires_grad=True)
    result = clipped_loss(logprobs, torch.tensor([-1.0]), torch.tensor([advantage]), **BOUNDS)
    result.losses.sum().backward()

    assert result.losses.item() == pytest.approx(loss, abs=1e-6)
    assert logprobs.grad.item() == pytest.approx(grad, abs=1e-6)


def test_the_dual_clip_can_be_switched_off() -> None:
    bounds = BOUNDS | {"dual_clip": 0.0}
    result = clipped_loss(torch.tensor([log(4.0)]), torch.zeros(1), torch.tensor([-2.0]), **bounds)
    assert result.losses.item() == pytest.approx(8.0)
    assert not result.is_dual_clipped.any()


def test_an_absurd_ratio_stays_finite_and_gives_no_gradient() -> None:
    logprobs = torch.tensor([0.0, -200.0], requires_grad=True)
    behavior = torch.tensor([-200.0, 0.0])
    result = clipped_loss(logprobs, behavior, torch.tensor([-1.0, 1.0]), **BOUNDS | {"dual_clip": 0.0})
    result.losses.sum().backward()

    assert result.losses[0].item() == pytest.approx(np.exp(20.0), rel=1e-6)
    assert result.log_ratio.tolist() == [20.0, -20.0]
    assert logprobs.grad.tolist() == [0.0, 0.0]


def test_values_and_gradients_match_the_formula_in_float64() -> None:
    random = np.random.default_rng(1)
    new, old, advantages = -random.exponential(size=4000), -random.exponential(size=4000), random.normal(size=4000)
    ratio = np.exp(new - old)
    plain, cut = -advantages * ratio, -advantages * np.clip(ratio, 0.8, 1.28)
    upper = np.maximum(plain, cut)
    is_dual = (advantages < 0) & (-3.0 * advantages < upper)
    losses = np.where(is_dual, -3.0 * advantages, upper)
    grads = np.where((cut > plain) | is_dual, 0.0, plain)

    logprobs = torch.tensor(new, requires_grad=True)
    result = clipped_loss(logprobs, torch.tensor(old), torch.tensor(advantages), **BOUNDS)
    result.losses.sum().backward()

    np.testing.assert_allclose(result.losses.detach(), losses, atol=1e-6)
    np.testing.assert_allclose(logprobs.grad, grads, atol=1e-6)
    np.testing.assert_array_equal(result.is_clipped, cut > plain)
    np.testing.assert_array_equal(result.is_dual_clipped, is_dual)
    np.testing.assert_allclose(result.log_ratio, new - old, atol=1e-6)
    assert not result.log_ratio.requires_grad


def test_different_shapes_are_refused_by_name() -> None:
    with pytest.raises(AsyncrlError, match=r"logprobs \(2,\), behavior_logprobs \(3,\)"):
        clipped_loss(torch.zeros(2), torch.zeros(3), torch.zeros(2), **BOUNDS)
