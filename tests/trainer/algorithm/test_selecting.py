"""Which tokens are selected, with covariances worked by hand."""

import numpy as np
import pytest

from asyncrl.algo.outcomes import Outcome
from asyncrl.trainer.algorithm.estimates import BEHAVIOR, Estimates
from asyncrl.trainer.algorithm.recipe import LOGPROBS, Recipe
from asyncrl.trainer.algorithm.selecting import select_tokens
from asyncrl.trainer.packing.step import Step, TrajectoryInfo

CLIP_COV = {"loss": "clip_cov", "cov_low": 0.5}


def step(*lengths: int, names: list[tuple[int, int]] | None = None) -> Step:
    """Trajectories by group and index; one group if nothing is said of them."""
    names = names or [(0, index) for index in range(len(lengths))]
    infos = [
        TrajectoryInfo(index, 1, Outcome(group_id=group, length=length, reward=0.0))
        for (group, index), length in zip(names, lengths, strict=True)
    ]
    return Step(infos, {}, [0] * len(infos))


def rows(*rows: list[float]) -> list[np.ndarray]:
    return [np.array(row) for row in rows]


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
