"""Estimates of a step before its first update, worked by hand."""

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from asyncrl.algo.outcomes import Outcome
from asyncrl.config.catalogue import ADVANTAGES
from asyncrl.config.correction import PRESETS
from asyncrl.trainer.algorithm.estimates import BEHAVIOR, Estimates, estimate, select_tokens, token_rewards
from asyncrl.trainer.algorithm.mini_batch import as_context
from asyncrl.trainer.algorithm.recipe import LOGPROBS, REFERENCE, SUM_PI_SQUARED, TOKEN_REWARDS, VALUES, Recipe
from asyncrl.trainer.packing.step import TrainingStep, TrainingTrajectory, TrajectoryInfo
from tests.trainer.episode_trajectories import episode


def outcomes(*rewards: float, length: int = 2) -> list[Outcome]:
    return [Outcome(group_id=0, length=length, reward=reward) for reward in rewards]


def rows(*rows: list[float]) -> list[np.ndarray]:
    return [np.array(row) for row in rows]


def test_a_kl_in_the_reward_is_taken_before_the_group_is_compared(config):
    recipe = Recipe(config(algorithm={"advantage": "dr_grpo", "kl_coef": 0.5, "kl_in": "reward", "kl": "k1"}))
    per_token = {
        LOGPROBS: rows([-1.0, -1.0], [-1.0, -1.0]),
        REFERENCE: rows([-1.2, -1.4], [-1.0, -1.0]),
    }
    found = estimate(recipe, outcomes(1.0, 0.0), per_token, kl_coef=0.5)

    # the first trajectory's KL is .2 + .4, so its reward is 1 - .3, and the mean .35
    assert found.advantages[0] == pytest.approx([0.35, 0.35])
    assert found.advantages[1] == pytest.approx([-0.35, -0.35])
    assert found.metrics["kl_in_reward"] == pytest.approx((0.3 + 0.0) / 2)
    assert found.metrics["kl_coef"] == 0.5


def test_a_rejected_trajectory_is_left_out_of_the_loss_and_not_of_its_group(config):
    correction = {"mode": "decoupled", "rejection": "seq_mean_k1", "rejection_threshold": "0.5_2.0"}
    recipe = Recipe(config(algorithm={"advantage": "dr_grpo", "correction": correction}))
    per_token = {
        LOGPROBS: rows([-1.0, -1.0], [-1.0, -1.0]),
        BEHAVIOR: rows([-1.0, -1.1], [-3.0, -3.0]),
    }
    found = estimate(recipe, outcomes(1.0, 0.0), per_token)

    assert found.keep is not None
    assert [keep.tolist() for keep in found.keep] == [[True, True], [False, False]]
    assert found.advantages[0] == pytest.approx([0.5, 0.5])
    assert (len(found.advantages[1]), found.num_kept(1)) == (2, 0)
    assert found.metrics["rollout_corr/rollout_rs_seq_masked_fraction"] == 0.5


def test_a_critic_gets_value_targets(config):
    recipe = Recipe(config(algorithm={"advantage": "gae"}))
    found = estimate(recipe, outcomes(1.0, 0.0), {VALUES: rows([0.2, 0.4], [0.2, 0.4])})

    assert found.value_targets is not None
    assert [target.tolist() for target in found.value_targets] == [[1.0, 1.0], [0.0, 0.0]]


def test_rejected_tokens_are_in_no_mean_over_tokens(config):
    """Whitened over the three tokens that are kept, whose returns are 1, 0 and 0."""
    correction = {"mode": "decoupled", "rejection": "token_k1", "rejection_threshold": "0.5_2.0"}
    recipe = Recipe(config(algorithm={"advantage": "reinforce_plus_plus", "correction": correction}))
    per_token = {
        LOGPROBS: rows([-1.0, -1.0], [-1.0, -1.0]),
        BEHAVIOR: rows([-3.0, -1.0], [-1.0, -1.0]),
    }
    found = estimate(recipe, outcomes(1.0, 0.0), per_token)

    deviation = (1 / 3) ** 0.5
    assert found.advantages[0] == pytest.approx([0.0, (2 / 3) / deviation], abs=1e-6)
    assert found.advantages[1] == pytest.approx([(-1 / 3) / deviation] * 2, abs=1e-6)
    assert [found.kept(place).tolist() for place in (0, 1)] == [[False, True], [True, True]]


def test_a_penalty_on_a_rejected_token_still_counts_in_its_group(config):
    correction = {"mode": "decoupled", "rejection": "token_k1", "rejection_threshold": "0.5_2.0"}
    algorithm = {"advantage": "dr_grpo", "kl_coef": 0.5, "kl_in": "reward", "kl": "k1", "correction": correction}
    per_token = {
        LOGPROBS: rows([-1.0, -1.0], [-1.0, -1.0]),
        REFERENCE: rows([-1.2, -1.4], [-1.0, -1.0]),
        BEHAVIOR: rows([-3.0, -1.0], [-1.0, -1.0]),
    }
    found = estimate(Recipe(config(algorithm=algorithm)), outcomes(1.0, 0.0), per_token, kl_coef=0.5)
    assert found.advantages[0] == pytest.approx([0.0, 0.35])


def test_rewards_alone_are_enough_without_per_token_numbers(config):
    found = estimate(Recipe(config()), outcomes(1.0, 1.0, 0.0), {})
    assert (found.importance, found.keep, found.value_targets, found.metrics) == (None, None, None, {})
    assert found.advantages[0].shape == (2,)


EPISODES = {"function": "unused.py:Unused"}


def test_a_reward_of_a_turn_is_a_return_of_the_tokens_before_it(config):
    recipe = Recipe(config(algorithm={"advantage": "gae"}, environment=EPISODES))
    assert recipe.reads_token_rewards
    per_token = {VALUES: rows([0.0] * 4, [0.0] * 2), TOKEN_REWARDS: rows([0.0, 0.5, 0.0, 1.0], [0.0, 0.25])}
    outcomes = [Outcome(group_id=0, length=4, reward=1.5), Outcome(group_id=0, length=2, reward=0.25)]
    found = estimate(recipe, outcomes, per_token)

    assert found.value_targets is not None
    assert [targets.tolist() for targets in found.value_targets] == [[1.5, 1.5, 1.0, 1.0], [0.25, 0.25]]


@pytest.mark.parametrize("advantage", ["grpo", "rloo", "remax", "optimal_token_baseline"])
def test_other_estimators_see_totals_only(config, advantage: str):
    assert not Recipe(config(algorithm={"advantage": advantage}, environment=EPISODES)).reads_token_rewards


def test_without_an_environment_no_rewards_of_tokens_are_read(config):
    assert not Recipe(config(algorithm={"advantage": "gae"})).reads_token_rewards


def test_the_reward_of_a_rejected_token_goes_to_the_kept_one_before_it(config):
    correction = {"mode": "decoupled", "rejection": "token_k1", "rejection_threshold": "0.5_2.0"}
    algorithm = {"advantage": "gae", "correction": correction, "kl_coef": 0.5, "kl_in": "reward", "kl": "k1"}
    recipe = Recipe(config(algorithm=algorithm, environment=EPISODES))
    per_token = {
        LOGPROBS: rows([-1.0] * 5),
        REFERENCE: rows([-1.2] * 5),  # a penalty of .1 for each token
        BEHAVIOR: rows([-9.0, -1.0, -9.0, -1.0, -9.0]),
        VALUES: rows([0.0] * 5),
        TOKEN_REWARDS: rows([8.0, 0.0, 1.0, 0.0, 2.0]),
    }
    found = estimate(recipe, [Outcome(group_id=0, length=5, reward=11.0)], per_token, kl_coef=0.5)

    assert found.value_targets is not None
    last = 2.0 - 2 * 0.1
    assert found.value_targets[0].tolist() == pytest.approx([0.0, 1.0 - 2 * 0.1 + last, 0.0, last, 0.0])


@pytest.mark.parametrize("importance", ["", "token", "sequence"])
@pytest.mark.parametrize("num_kept", [0, 1, 2, 3])
@pytest.mark.parametrize("advantage", ADVANTAGES)
def test_every_estimator_takes_a_step_that_keeps_few_tokens_or_none(config, advantage, num_kept, importance):
    correction = {"mode": "decoupled", "rejection": "token_k1", "rejection_threshold": "0.5_2.0"}
    weights = {"reward_weights": {"reward": 1.0}} if advantage == "gdpo" else {}
    correction |= {"importance": importance} if importance else {}
    recipe = Recipe(config(algorithm={"advantage": advantage, "correction": correction, **weights}))
    sampled = [-1.0] * num_kept + [-9.0] * (4 - num_kept)
    per_token = {
        LOGPROBS: rows([-1.0, -1.0], [-1.0, -1.0]),
        BEHAVIOR: rows(sampled[:2], sampled[2:]),
        VALUES: rows([0.5, 0.25], [0.5, 0.25]),
        SUM_PI_SQUARED: rows([0.5, 0.5], [0.5, 0.5]),
    }
    step = [Outcome(group_id=0, length=2, reward=reward, baseline=0.5) for reward in (1.0, 0.0)]
    found = estimate(recipe, step, per_token)

    assert [found.num_kept(place) for place in (0, 1)] == [min(num_kept, 2), max(num_kept - 2, 0)]
    assert all(np.isfinite(one).all() for one in found.advantages)
    assert not any(one[~found.kept(place)].any() for place, one in enumerate(found.advantages))
    assert all(np.isfinite(value) for value in found.metrics.values())


@pytest.mark.parametrize("preset", PRESETS)
def test_every_correction_takes_a_step_without_a_token(config, preset):
    recipe = Recipe(config(algorithm={"loss": PRESETS[preset].loss or "gspo", "correction": {"preset": preset}}))
    per_token = {LOGPROBS: rows([], []), BEHAVIOR: rows([], [])}
    assert [len(one) for one in estimate(recipe, outcomes(1.0, 0.0, length=0), per_token).advantages] == [0, 0]


# ── test selecting ────────────────────────────────────────────────────────────────────────────
# Which tokens are selected, with covariances worked by hand.

CLIP_COV = {"loss": "clip_cov", "cov_low": 0.5}


def step(*lengths: int, names: list[tuple[int, int]] | None = None) -> TrainingStep:
    """Trajectories by group and index; one group if nothing is said of them."""
    names = names or [(0, index) for index in range(len(lengths))]
    infos = [
        TrajectoryInfo(index, 1, Outcome(group_id=group, length=length, reward=0.0))
        for (group, index), length in zip(names, lengths, strict=True)
    ]
    return TrainingStep(infos, {}, [0] * len(infos))


def listed(selected):
    return {place: mask.tolist() for place, mask in selected.items()}


def test_a_loss_without_a_selection_selects_nothing(config):
    assert select_tokens(Recipe(config()), step(2), [0], {}, Estimates(rows([1.0, 1.0])), seed=0) is None


def test_selection_covers_the_mini_batch_only(config):
    """Places 2 and 3: mean advantage -.2 and mean log-prob -2, so the first token's covariance, 1.2, is the highest."""
    recipe = Recipe(config(algorithm={"loss": "kl_cov", "cov_ratio": 0.2}))
    estimates = Estimates(rows([9.0, 9.0], [-9.0, -9.0], [1.0, 1.0], [-1.0, -1.0, -1.0]))
    logprobs = rows([-0.1, -0.1], [-9.0, -9.0], [-1.0, -3.0], [-2.0, -2.0, -2.0])
    per_token = {LOGPROBS: logprobs, BEHAVIOR: logprobs}
    selected = select_tokens(recipe, step(2, 2, 2, 3), [2, 3], per_token, estimates, seed=0)

    assert listed(selected) == {2: [True, False], 3: [False, False, False]}


def test_a_completion_without_tokens_has_none_to_pick_and_moves_no_other(config):
    """Covariances of the three tokens, whose means are 0 and -2: -1, 1 and 0."""
    recipe = Recipe(config(algorithm={"loss": "kl_cov", "cov_ratio": 0.4}))
    logprobs = rows([-3.0], [], [-1.0, -2.0])
    per_token, estimates = {LOGPROBS: logprobs, BEHAVIOR: logprobs}, Estimates(rows([1.0], [], [1.0, -2.0]))
    selected = select_tokens(recipe, step(1, 0, 2), [0, 1, 2], per_token, estimates, seed=0)

    assert listed(selected) == {0: [False], 1: [], 2: [True, False]}


@pytest.mark.parametrize(
    ("correction", "expected"),
    [({}, {0: [False, False], 1: [False, True]}), ({"mode": "decoupled"}, {0: [True, False], 1: [False, True]})],
    ids=["the sampler", "the policy the step begins with"],
)
def test_clipping_is_judged_by_the_ratio_that_the_loss_uses(config, correction, expected):
    """Covariances are 1, -1, -1 and 1. To the sampler the first token's ratio is e, which is past the bound of 2."""
    recipe = Recipe(config(algorithm={**CLIP_COV, "cov_ratio": 1.0, "correction": correction}))
    per_token = {LOGPROBS: rows([-1.0, -3.0], [-1.0, -3.0]), BEHAVIOR: rows([-2.0, -3.0], [-1.0, -3.0])}
    estimates = Estimates(rows([1.0, 1.0], [-1.0, -1.0]))

    assert listed(select_tokens(recipe, step(2, 2), [0, 1], per_token, estimates, seed=0)) == expected


def test_random_selection_depends_on_step_and_token_not_on_the_order(config):
    """Four trajectories with covariances of 1 and -1 in turn; one more, -4 and 4, makes the mean advantage zero."""
    recipe = Recipe(config(algorithm={**CLIP_COV, "cov_high": 2.0, "cov_ratio": 0.2}))
    names = [(5, 0), (5, 1), (3, 0), (3, 1), (4, 0)]

    def selected(order: list[int], seed: int) -> dict[tuple[int, int], list[bool]]:
        advantages = rows(*([-4.0 if place == 4 else 1.0] * 32 for place in order))
        logprobs = rows(*[[-1.0, -3.0] * 16] * 5)
        ordered = step(*[32] * 5, names=[names[place] for place in order])
        per_token = {LOGPROBS: logprobs, BEHAVIOR: logprobs}
        found = listed(select_tokens(recipe, ordered, range(5), per_token, Estimates(advantages), seed=seed))
        return {names[order[place]]: mask for place, mask in found.items()}

    first = selected([0, 1, 2, 3, 4], seed=7)
    assert sum(map(sum, first.values())) == 32, "a fifth of 160 tokens, and half of those in question"
    assert not any(first[4, 0])
    assert len({tuple(mask) for mask in first.values()}) == 5, "each trajectory has lots of its own"
    assert selected([4, 3, 2, 1, 0], seed=7) == first
    assert selected([0, 1, 2, 3, 4], seed=8) != first


# ── test token rewards ────────────────────────────────────────────────────────────────────────


def rewarded(*rewards: float, verdict: float) -> TrainingTrajectory:
    """Three turns of 2, 1 and 3 tokens."""
    one = episode([(-1, [1], [2, 3]), (0, [4], [5]), (0, [6], [7, 8, 9])], reward=verdict)
    turns = [structs.replace(turn, reward=reward) for turn, reward in zip(one.turns, rewards, strict=True)]
    return replace(one, turns=turns)


def test_turns_are_rewarded_at_their_last_tokens_and_the_rest_of_the_verdict_comes_last() -> None:
    rewards = token_rewards(rewarded(0.5, 0.0, 0.25, verdict=1.0))
    assert rewards.tolist() == [0, 0.5, 0, 0, 0, 0.5]


def test_a_verdict_below_the_rewards_of_the_turns_takes_the_difference_back() -> None:
    assert token_rewards(rewarded(0.5, 0.25, 0.0, verdict=0.5)).tolist() == [0, 0.5, 0.25, 0, 0, -0.25]


def test_a_completion_is_rewarded_at_its_end() -> None:
    plain = replace(rewarded(0, 0, 0, verdict=2.0), turns=(), context_ids=np.zeros(0, np.int32))
    assert token_rewards(plain).tolist() == [0, 0, 0, 0, 0, 2]


@pytest.mark.parametrize(
    ("untrained", "expected"),
    [
        pytest.param([0, 1, 1, 0, 0, 0], [0.75, 0, 0, 1.25], id="to the token before"),
        pytest.param([1, 1, 0, 0, 0, 0], [0.25, 0, 0, 1.25], id="to nobody, because nothing before is trained"),
        pytest.param([0, 0, 0, 1, 1, 1], [0, 0.5, 1.5], id="the verdict too"),
        pytest.param([1, 1, 1, 1, 1, 1], [], id="nothing is trained"),
    ],
)
def test_the_reward_of_an_untrained_token_goes_to_the_trained_one_before(
    untrained: list[int], expected: list[float]
) -> None:
    cut = as_context(rewarded(0.5, 0.25, 0.25, verdict=2.0), np.array(untrained, np.bool_))
    assert token_rewards(cut).tolist() == expected
