import pytest

from asyncrl.algo.losses.clipped import clipped
from tests.algo.losses.worked import grad_of, of_ratios


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
def test_clip_binds_only_when_the_step_was_already_taken(
    ratio: float, advantage: float, loss: float, grad: float
) -> None:
    tokens = of_ratios(ratio, advantages=[advantage])
    losses = clipped(tokens, clip_low=0.2, clip_high=0.28, dual_clip=3.0).losses
    losses.sum().backward()

    assert losses.item() == pytest.approx(loss)
    assert grad_of(tokens.logprobs).item() == pytest.approx(grad)


def test_the_dual_clip_can_be_switched_off() -> None:
    result = clipped(of_ratios(4.0, advantages=[-2.0]), dual_clip=0.0)
    assert result.losses.item() == pytest.approx(8.0)
    assert not result.metrics["dual_clip_fraction"].any()


def test_metrics_say_which_bound_held() -> None:
    tokens = of_ratios(1.5, 1.5, 0.5, 0.5, 4.0, advantages=[1.0, -1.0, 1.0, -1.0, -1.0])
    metrics = clipped(tokens).metrics
    assert metrics["clip_fraction"].tolist() == [True, False, False, True, False]
    assert metrics["dual_clip_fraction"].tolist() == [False, False, False, False, True]
