from math import log, sqrt

import pytest
import torch

from asyncrl.algo.losses.gspo import gspo
from asyncrl.algo.losses.tokens import Tokens
from asyncrl.algo.ragged import Ragged
from tests.algo.losses.worked import grad_of, of_ratios


def test_all_tokens_of_a_trajectory_share_its_ratio_and_its_gradient() -> None:
    tokens = of_ratios(2.0, 1.0, 1.0, 4.0, advantages=[1.0, 1.0, 3.0, -1.0], lengths=[2, 2])
    losses = gspo(tokens, clip_low=0.5, clip_high=0.5).losses
    losses.sum().backward()

    # trajectory ratios sqrt(2 · 1) = 1.414 and sqrt(1 · 4) = 2: the second is above 1.5, which binds for A = 3 only
    assert losses.tolist() == pytest.approx([-sqrt(2), -sqrt(2), -4.5, 2.0])
    assert grad_of(tokens.logprobs).tolist() == pytest.approx([-sqrt(2), -sqrt(2), 0.0, 2.0])


def test_metrics_say_which_trajectories_were_clipped() -> None:
    tokens = of_ratios(1.01, 1.0, 1.01, 1.0, advantages=[1.0, 1.0, -1.0, -1.0], lengths=[2, 2])
    assert gspo(tokens).metrics["clip_fraction"].tolist() == [True, True, False, False]


def test_the_ratio_of_a_trajectory_is_cut_at_e_10() -> None:
    tokens = of_ratios(3e6, 3e6, advantages=[-1.0, -1.0], lengths=[2])
    losses = gspo(tokens).losses
    losses.sum().backward()
    assert losses.tolist() == pytest.approx([22026.4658, 22026.4658])
    assert grad_of(tokens.logprobs).tolist() == [0.0, 0.0]


def test_bounds_of_one_in_ten_thousand_are_resolved_in_float32() -> None:
    """The gradient's zero term must not be added to log-probs of size 10: their rounding is as wide as the bounds."""
    old = torch.full((1000,), -10.0)
    tokens = Tokens(
        logprobs=(old + 1e-3 * torch.rand(1000)).requires_grad_(),
        old_logprobs=old,
        advantages=torch.ones(1000),
        sequences=Ragged([1000]),
    )
    mean = (tokens.logprobs.detach().double() - old.double()).mean().item()
    losses = gspo(tokens, clip_low=0.1, clip_high=0.1).losses.detach()
    assert [log(-loss) for loss in (losses.min().item(), losses.max().item())] == pytest.approx([mean] * 2, abs=2e-7)
