from math import log

import pytest

from asyncrl.algo.losses.dppo import dppo_kl, dppo_tv
from asyncrl.algo.losses.tokens import LossFunction
from tests.algo.losses.worked import grad_of, of_ratios


@pytest.mark.parametrize(
    ("old_probability", "ratio", "advantage", "grad"),
    [
        pytest.param(1e-5, 15.0, 1.0, -15.0, id="rare token fifteenfold: hardly any probability moved"),
        pytest.param(1e-5, 100.0, 1.0, -20.0, id="a hundredfold: kept, the weight is cut"),
        pytest.param(0.5, 1.4, 1.0, 0.0, id="likely good token up by 0.2: enough"),
        pytest.param(0.5, 0.6, 1.0, -0.6, id="good token that went down: pushed up"),
        pytest.param(0.9, 0.8, -1.0, 0.0, id="likely bad token down by 0.18: enough"),
        pytest.param(0.5, 1.8, -1.0, 1.8, id="bad token that went up: pushed down"),
    ],
)
def test_tokens_are_left_out_by_the_probability_they_moved(
    old_probability: float, ratio: float, advantage: float, grad: float
) -> None:
    tokens = of_ratios(ratio, advantages=[advantage], old_probability=old_probability)
    losses = dppo_tv(tokens).losses
    losses.sum().backward()

    assert grad_of(tokens.logprobs).item() == pytest.approx(grad)
    assert losses.item() == pytest.approx(grad * (log(old_probability * ratio)))


@pytest.mark.parametrize(
    ("ratio", "advantage", "is_left_out"),
    [
        # of 0.5 → 0.65: .5 log(.5/.65) + .5 log(.5/.35) = 0.0472 nats; of 0.5 → 0.7: 0.0872
        pytest.param(1.3, 1.0, False, id="0.047 nats up"),
        pytest.param(1.4, 1.0, True, id="0.087 nats up"),
        pytest.param(1.4, -1.0, False, id="bad token: whatever it moved up"),
        pytest.param(0.7, -1.0, False, id="0.047 nats down"),
        pytest.param(0.6, -1.0, True, id="0.087 nats down"),
        pytest.param(0.6, 1.0, False, id="good token: whatever it moved down"),
    ],
)
def test_tokens_are_left_out_by_the_divergence_of_two_outcomes(
    ratio: float, advantage: float, is_left_out: bool
) -> None:
    tokens = of_ratios(ratio, advantages=[advantage], old_probability=0.5)
    result = dppo_kl(tokens, clip_low=0.05, clip_high=0.05)
    assert result.metrics["clip_fraction"].item() == is_left_out
    assert (result.losses.item() == 0) == is_left_out


@pytest.mark.parametrize("loss", [dppo_tv, dppo_kl])
def test_metrics_tell_left_out_from_cut(loss: LossFunction) -> None:
    tokens = of_ratios(30.0, 1.0, 900.0, advantages=[1.0, 1.0, 1.0], old_probability=1e-3)
    assert loss(tokens).metrics["clip_fraction"].tolist() == [False, False, True]
    assert loss(tokens).metrics["ratio_cap_fraction"].tolist() == [True, False, False]
    assert not loss(tokens, ratio_cap=40.0).metrics["ratio_cap_fraction"].any()
