from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.algo.aggregate import Ragged
from asyncrl.algo.loss_tokens import (
    FLOAT32_LOG_RATIO,
    MAX_LOG_RATIO,
    StepTokens,
    Tokens,
    clip_cov_selection,
    kl_cov_selection,
    token_keys,
)
from asyncrl.errors import AsyncrlError
from tests.algo.losses.padded import random_padded
from tests.algo.losses.worked import grad_of, of_ratios

SELECTIONS = {
    "clip_cov": lambda step: clip_cov_selection(step, cov_ratio=0.1, cov_low=0.1, clip_low=0.2, clip_high=0.2),
    "kl_cov": lambda step: kl_cov_selection(step, cov_ratio=0.1),
}


def random_step(number: int = 400, seed: int = 0) -> StepTokens:
    random = np.random.default_rng(seed)
    old = -random.exponential(size=number)
    return StepTokens(
        advantages=np.sign(random.normal(size=number)),  # few values, so that there are ties
        logprobs=np.round(old + 0.2 * random.normal(size=number), 1),
        old_logprobs=np.round(old, 1),
        keys=token_keys(range(number), [0] * number, [1] * number),
        seed=seed,
    )


def reordered(step: StepTokens, order: np.ndarray) -> StepTokens:
    return replace(
        step, **{name: getattr(step, name)[order] for name in ("advantages", "logprobs", "old_logprobs", "keys")}
    )


def test_the_highest_covariances_are_picked() -> None:
    # means 0 and -1; covariances (1)(.9), (1)(-.5), (-1)(.4), (-1)(-.8)
    step = StepTokens(
        advantages=np.array([1.0, 1.0, -1.0, -1.0]),
        logprobs=np.array([-0.1, -1.5, -0.6, -1.8]),
        old_logprobs=np.zeros(4),
        keys=np.arange(4),
    )
    assert kl_cov_selection(step, cov_ratio=0.5).tolist() == [True, False, False, True]
    assert kl_cov_selection(step, cov_ratio=0.25).tolist() == [True, False, False, False]


def test_among_equals_the_key_decides() -> None:
    step = StepTokens(
        advantages=np.array([1.0, 1.0, 1.0, -3.0]),
        logprobs=np.array([-0.5, -0.5, -0.5, -1.5]),
        old_logprobs=np.zeros(4),
        keys=np.array([30, 10, 20, 40]),
    )
    assert kl_cov_selection(step, cov_ratio=0.75).tolist() == [False, True, True, True]


def test_one_token_is_picked_however_small_the_share() -> None:
    step = random_step()
    assert kl_cov_selection(step, cov_ratio=1e-9).sum() == 1
    assert clip_cov_selection(step, cov_ratio=1e-9, cov_low=0.1).sum() == 1


def test_only_tokens_within_the_band_that_the_clip_leaves_are_picked() -> None:
    # means 0 and -2; covariances (2)(1), (2)(1), (-2)(-1), (-2)(-1), and the first and third were clipped
    step = StepTokens(
        advantages=np.array([2.0, 2.0, -2.0, -2.0]),
        logprobs=np.array([-1.0, -1.0, -3.0, -3.0]),
        old_logprobs=np.array([-2.0, -1.0, -2.0, -3.0]),
        keys=np.arange(4),
    )
    all_of_them = {"cov_ratio": 1.0, "cov_low": 1.9, "cov_high": 2.1}
    assert clip_cov_selection(step, clip_low=0.2, clip_high=0.2, **all_of_them).tolist() == [False, True, False, True]
    assert clip_cov_selection(step, clip_low=0.7, clip_high=1.8, **all_of_them).all()
    assert not clip_cov_selection(step, cov_ratio=1.0, cov_low=2.1, cov_high=9.0).any()
    assert not clip_cov_selection(step, cov_ratio=1.0, cov_low=0.1, cov_high=1.9).any()


def test_the_clip_leaves_a_token_without_an_advantage_alone() -> None:
    # means 1 and -2, all covariances 1; both tokens of advantage 0 have left the bounds
    step = StepTokens(
        advantages=np.array([2.0, 2.0, 0.0, 0.0]),
        logprobs=np.array([-1.0, -1.0, -3.0, -3.0]),
        old_logprobs=np.array([-1.0, -1.0, -2.0, -4.0]),
        keys=np.arange(4),
    )
    assert clip_cov_selection(step, clip_low=0.2, clip_high=0.2, cov_ratio=1.0, cov_low=0.9).all()


@pytest.mark.parametrize("seed", range(4))
def test_both_match_the_masked_formulas(seed: int) -> None:
    batch = random_padded(seed)
    shown = batch.mask
    number = int(shown.sum())
    advantages, logprobs, old = (
        batch.flat(one).numpy() for one in (batch.advantages, batch.logprobs, batch.old_logprobs)
    )
    step = StepTokens(advantages=advantages, logprobs=logprobs, old_logprobs=old, keys=np.arange(number), seed=seed)
    mean_advantage = (batch.advantages * shown).sum() / number
    mean_logprob = (batch.logprobs * shown).sum() / number
    covariance = np.where(shown, (batch.advantages - mean_advantage) * (batch.logprobs - mean_logprob), -np.inf)
    picked = np.zeros(shown.shape, bool)
    picked.reshape(-1)[np.argsort(-covariance, axis=None)[: int(0.1 * number)]] = True
    np.testing.assert_array_equal(kl_cov_selection(step, cov_ratio=0.1), picked[shown])

    ratio = np.exp(np.where(shown, batch.logprobs - batch.old_logprobs, 0))
    is_clipped = -batch.advantages * np.clip(ratio, 0.8, 1.2) > -batch.advantages * ratio
    eligible = (shown & ~is_clipped & (covariance > 0.1) & (covariance < 2.0))[shown]
    band = {"clip_low": 0.2, "clip_high": 0.2, "cov_low": 0.1, "cov_high": 2.0}
    np.testing.assert_array_equal(clip_cov_selection(step, cov_ratio=1.0, **band), eligible)
    chosen = clip_cov_selection(step, cov_ratio=0.05, **band)
    assert chosen.sum() == min(int(0.05 * number), eligible.sum())
    assert not (chosen & ~eligible).any()


@pytest.mark.parametrize("name", SELECTIONS)
@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_same_tokens_are_picked_in_whatever_order(name: str, random: Random) -> None:
    step = random_step()
    order = np.array(random.sample(range(len(step.keys)), len(step.keys)))
    np.testing.assert_array_equal(SELECTIONS[name](reordered(step, order)), SELECTIONS[name](step)[order])


def test_each_seed_picks_others_and_every_token_is_picked_by_some() -> None:
    step = replace(random_step(), logprobs=random_step().old_logprobs)
    picks = [
        clip_cov_selection(replace(step, seed=seed), cov_ratio=0.05, cov_low=0.1, cov_high=9.0) for seed in range(200)
    ]
    counts = np.sum(picks, axis=0)
    eligible = clip_cov_selection(step, cov_ratio=1.0, cov_low=0.1, cov_high=9.0)
    expected = 200 * 20 / eligible.sum()
    assert counts[~eligible].sum() == 0
    assert counts[eligible].min() > expected / 3
    assert counts[eligible].max() < expected * 2


def test_a_step_without_tokens_picks_none() -> None:
    empty = np.empty(0)
    step = StepTokens(advantages=empty, logprobs=empty, old_logprobs=empty, keys=token_keys([], [], []))
    assert clip_cov_selection(step).shape == kl_cov_selection(step).shape == (0,)


def test_keys_depend_on_the_token_and_not_on_its_neighbours() -> None:
    keys = token_keys([7, 7, 8], [0, 1, 0], [3, 0, 2])
    assert len(set(keys.tolist())) == 5
    np.testing.assert_array_equal(token_keys([8], [0], [2]), keys[3:])
    np.testing.assert_array_equal(token_keys([9, 7], [4, 0], [1, 3])[1:], keys[:3])


def test_tokens_of_a_large_step_have_keys_of_their_own() -> None:
    keys = token_keys([group for group in range(125) for _ in range(8)], [*range(8)] * 125, [250] * 1000)
    assert len(np.unique(keys)) == 250_000


# ── test tokens ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("wrong", ["logprobs", "old_logprobs", "advantages", "is_selected"])
def test_a_tensor_that_is_not_one_number_per_token_is_refused_by_name(wrong: str) -> None:
    tensors = {name: torch.zeros(5) for name in ("logprobs", "old_logprobs", "advantages", "is_selected")}
    tensors[wrong] = torch.zeros(5, 1)
    with pytest.raises(AsyncrlError, match=rf"expected tensors of shape \(5,\), .*{wrong} \(5, 1\)"):
        Tokens(**tensors, sequences=Ragged([2, 0, 3]))


def test_more_tokens_than_the_sequences_have_are_refused() -> None:
    with pytest.raises(AsyncrlError, match=r"expected tensors of shape \(2,\)"):
        Tokens(logprobs=torch.zeros(5), old_logprobs=torch.zeros(5), advantages=torch.zeros(5), sequences=Ragged([2]))


def test_the_log_ratio_is_the_difference_within_its_bound_and_flat_beyond() -> None:
    tokens = of_ratios(1e-12, 2.0, 1e12, advantages=[0.0] * 3)
    bounded = tokens.log_ratio()
    bounded.sum().backward()
    assert bounded.tolist() == pytest.approx([-MAX_LOG_RATIO, 0.6931471805599453, MAX_LOG_RATIO])
    assert grad_of(tokens.logprobs).tolist() == [0.0, 1.0, 0.0]


def test_the_wide_bound_keeps_what_float32_can_hold() -> None:
    tokens = of_ratios(1e12, 1e40, advantages=[0.0] * 2)
    assert tokens.log_ratio(FLOAT32_LOG_RATIO).tolist() == pytest.approx([27.631021115928547, FLOAT32_LOG_RATIO])
    assert tokens.log_ratio(FLOAT32_LOG_RATIO).float().exp().isfinite().all()
