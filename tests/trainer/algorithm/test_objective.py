"""A micro-batch's share of the loss, worked by hand on three tokens of two trajectories."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from asyncrl.algo.logprobs import Scores
from asyncrl.algo.ragged import Ragged
from asyncrl.config.catalogue import LOSSES
from asyncrl.config.config import Config
from asyncrl.trainer.algorithm.mini_batch import LossInputs
from asyncrl.trainer.algorithm.objective import MicroBatchLoss, objective, trains_without_advantage
from asyncrl.trainer.algorithm.recipe import Recipe

WEIGHTS = torch.tensor([0.5, 0.25, 0.25])


def loss_inputs(**changed: object) -> LossInputs:
    plain: dict[str, Any] = {
        "sequences": Ragged([2, 1]),
        "behavior_logprobs": torch.tensor([-1.0, -1.0, -1.0]),
        "old_logprobs": torch.tensor([-1.0, -1.0, -1.0]),
        "advantages": torch.tensor([1.0, 1.0, -1.0]),
        "weights": WEIGHTS,
    }
    return LossInputs(**{**plain, **changed})


def loss_of(
    config: Callable[..., Config], algorithm: dict[str, Any], scores: Scores, **changed: object
) -> MicroBatchLoss:
    settings = config(algorithm=algorithm)
    return objective(Recipe(settings), settings.algorithm, scores, loss_inputs(**changed))


LOGPROBS = torch.tensor([-1.1, -0.9, -1.0])


def test_regularisers_are_weighed_like_the_policys_loss(config):
    algorithm = {"loss": "reinforce", "kl_coef": 0.1, "kl": "k1", "entropy_coef": 0.2}
    scores = Scores(LOGPROBS, entropy=torch.tensor([2.0, 1.0, 1.0]))
    parts = loss_of(config, algorithm, scores, ref_logprobs=torch.tensor([-1.0, -1.0, -1.0]))

    policy = 0.5 * 1.1 + 0.25 * 0.9 + 0.25 * -1.0
    kl = 0.5 * -0.1 + 0.25 * 0.1
    entropy = 0.5 * 2.0 + 0.25 + 0.25
    assert parts.loss.item() == pytest.approx(policy + 0.1 * kl - 0.2 * entropy, abs=1e-6)
    assert set(parts.metrics) == {"kl_ref", "entropy"}


def test_importance_weighs_the_policys_loss_alone(config):
    algorithm = {"loss": "reinforce", "correction": {"mode": "decoupled", "importance": "token"}}
    importance = torch.tensor([2.0, 0.0, 1.0])
    policy = 2 * 0.5 * 1.1 + 0.25 * -1.0
    assert loss_of(config, algorithm, Scores(LOGPROBS), importance=importance).loss.item() == pytest.approx(policy)
    damped = loss_of(config, {**algorithm, "sampler_kl_coef": 2.0}, Scores(LOGPROBS), importance=importance)
    assert damped.loss.item() == pytest.approx(policy + 2.0 * (0.5 + 0.25) * 0.1**2 / 2)


def test_the_kl_to_the_sampler_is_of_the_tokens_in_the_policys_loss(config):
    correction = {"rejection": "token_k1", "rejection_threshold": "0.95_2.0"}
    algorithm = {"loss": "reinforce", "sampler_kl_coef": 2.0, "correction": correction}
    logprobs = LOGPROBS.clone().requires_grad_()
    parts = loss_of(config, algorithm, Scores(logprobs))
    torch.autograd.backward(parts.loss)

    assert parts.loss.item() == pytest.approx(0.5 * 1.1 - 0.25 + 2.0 * 0.5 * 0.1**2 / 2), "the second is rejected"
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([0.5 * (-1.0 + 2.0 * -0.1), 0.0, 0.25])


def test_a_rejected_token_is_in_no_mean_of_its_sequence(config):
    """GSPO's ratio of the first trajectory is that of its kept token alone."""
    algorithm = {"loss": "gspo", "clip_low": 0.9, "clip_high": 9.0, "correction": {"mode": "decoupled"}}
    keep = torch.tensor([True, False, True])
    parts = loss_of(config, algorithm, Scores(LOGPROBS), keep=keep, weights=WEIGHTS * keep)
    assert parts.loss.item() == pytest.approx(-0.5 * torch.tensor(-0.1).exp().item() + 0.25, abs=1e-6)


def test_in_bypass_mode_correction_is_against_the_sampler_as_things_are_now(config):
    correction = {"rejection": "token_k1", "rejection_threshold": "0.95_2.0"}
    algorithm = {"loss": "reinforce", "kl_coef": 0.1, "kl": "k1", "correction": correction}
    parts = loss_of(config, algorithm, Scores(LOGPROBS), ref_logprobs=torch.tensor([-1.0, -1.0, -1.0]))

    # sampler to trainer: e^.1, e^-.1 = .905 (rejected), 1; the KL to the reference is of all tokens
    assert parts.loss.item() == pytest.approx(0.5 * 1.1 - 0.25 + 0.1 * (0.5 * -0.1 + 0.25 * 0.1), abs=1e-6)
    assert parts.metrics["rollout_corr/rollout_rs_masked_fraction"].tolist() == [False, True, False]


def test_in_bypass_mode_a_mean_over_a_trajectory_is_over_what_is_kept_of_it(config):
    correction = {"rejection": "token_k1", "rejection_threshold": "0.95_2.0"}
    algorithm = {"loss": "reinforce", "aggregation": "seq-mean-token-mean", "correction": correction}
    parts = loss_of(config, algorithm, Scores(LOGPROBS), weights=torch.tensor([0.25, 0.25, 0.5]))
    assert parts.loss.item() == pytest.approx(0.5 * 1.1 - 0.5 * 1.0, abs=1e-6), "the second token is rejected"


def test_losses_of_sequences_take_the_geometric_mean_of_importance(config):
    algorithm = {"loss": "gmpo", "correction": {"mode": "decoupled", "importance": "token"}}
    plain = loss_of(config, algorithm, Scores(LOGPROBS), weights=torch.tensor([0.5, 0.5, 0.0]))
    weighed = loss_of(
        config,
        algorithm,
        Scores(LOGPROBS),
        weights=torch.tensor([0.5, 0.5, 0.0]),
        importance=torch.tensor([0.5, 2.0, 1.0]),
    )
    assert weighed.loss.item() == pytest.approx(plain.loss.item(), abs=1e-6), "the square root of .5 times 2"


DIVERGED = Scores(torch.tensor([-1.1, -0.9, -1.6]))
"""The last trajectory, of advantage -1, is less likely than the sampler found it by .6 nats."""


@pytest.mark.parametrize("mode", ["bypass", "decoupled"])
def test_a_divergent_sequence_is_in_the_policys_loss_no_more_and_divides_it_as_before(config, mode):
    algorithm = {"loss": "reinforce", "correction": {"mode": mode, "mask_divergent": 0.5}}
    masked = loss_of(config, algorithm, DIVERGED)
    spared = loss_of(config, {**algorithm, "correction": {"mode": mode, "mask_divergent": 0.7}}, DIVERGED)

    assert masked.loss.item() == pytest.approx(0.5 * 1.1 + 0.25 * 0.9, abs=1e-6)
    assert spared.loss.item() == pytest.approx(0.5 * 1.1 + 0.25 * 0.9 - 0.25 * 1.6, abs=1e-6)
    assert masked.metrics["divergent_masked_fraction"].tolist() == [False, False, True]


def test_a_divergent_sequence_stays_in_the_kl_to_the_reference(config):
    algorithm = {"loss": "reinforce", "kl_coef": 1.0, "kl": "k1", "correction": {"mask_divergent": 0.5}}
    parts = loss_of(config, algorithm, DIVERGED, ref_logprobs=torch.tensor([-1.1, -0.9, -1.0]))
    assert parts.loss.item() == pytest.approx(0.5 * 1.1 + 0.25 * 0.9 - 0.25 * 0.6, abs=1e-6)


def test_rejected_tokens_and_divergent_sequences_are_left_out_together(config):
    correction = {"rejection": "token_k1", "rejection_threshold": "0.95_2.0", "mask_divergent": 0.5}
    algorithm = {"loss": "reinforce", "aggregation": "seq-mean-token-mean", "correction": correction}
    parts = loss_of(config, algorithm, DIVERGED, weights=torch.tensor([0.25, 0.25, 0.5]))
    assert parts.loss.item() == pytest.approx(0.5 * 1.1, abs=1e-6)


def test_the_gradient_of_a_step_of_divergent_sequences_alone_is_zero(config):
    logprobs = torch.tensor([-2.0, -2.0, -2.0], requires_grad=True)
    algorithm = {"loss": "gspo", "correction": {"mask_divergent": 0.5}}
    parts = loss_of(config, algorithm, Scores(logprobs), advantages=torch.tensor([-1.0, -1.0, -1.0]))
    torch.autograd.backward(parts.loss)
    assert logprobs.grad is not None
    assert not logprobs.grad.any()


def is_asked_of_all(config: Callable[..., Config], **algorithm: object) -> bool:
    settings = config(algorithm=algorithm)
    return trains_without_advantage(Recipe(settings), settings.algorithm)


TIGHT = {"rejection": "token_k1,seq_mean_k1", "rejection_threshold": "0.999_1.001"}


@pytest.mark.parametrize("correction", [{}, {"preset": "decoupled_token_is"}, TIGHT], ids=["", "decoupled", "tight"])
@pytest.mark.parametrize("name", LOSSES)
def test_terms_of_each_token_train_trajectories_without_advantage_whatever_the_loss(config, name, correction):
    algorithm = {"loss": name, "correction": correction} | ({"dro_beta": 0.1} if name == "dro" else {})
    assert is_asked_of_all(config, **algorithm) == (name in {"dro", "kl_cov"})
    for term in ({"sampler_kl_coef": 1e-6}, {"entropy_coef": 1e-12}, {"kl_coef": 1e-6}):
        assert is_asked_of_all(config, **algorithm, **term)
    assert not is_asked_of_all(config, kl_coef=0.1, kl_in="reward")


def test_the_loss_of_a_user_is_asked_for_every_trajectory(config, tmp_path):
    (tmp_path / "own.py").write_text("def own(tokens):\n    return -tokens.advantages * tokens.logprobs\n")
    assert is_asked_of_all(config, loss=f"{tmp_path / 'own.py'}:own")
