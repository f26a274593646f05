"""Which tokens are picked, with covariances worked by hand."""

import numpy as np
import pytest

from asyncrl.algo.outcomes import Outcome
from asyncrl.trainer.algorithm.estimates import BEHAVIOR, Estimates
from asyncrl.trainer.algorithm.recipe import LOGPROBS, Recipe
from asyncrl.trainer.algorithm.selecting import selected
from asyncrl.trainer.packing.step import Step, TrajectoryInfo

CLIP_COV = {"loss": "clip_cov", "cov_low": 0.5}


def step(*lengths: int, names: list[tuple[int, int]] | None = None) -> Step:
    """Trajectories by group and index; one group if nothing is said of them."""
    names = names or [(0, index) for index in range(len(lengths))]
    described = [
        TrajectoryInfo(index, 1, Outcome(group_id=group, length=length, reward=0.0))
        for (group, index), length in zip(names, lengths, strict=True)
    ]
    return Step(described, {}, [0] * len(described))


def column(*rows: list[float]) -> list[np.ndarray]:
    return [np.array(row) for row in rows]


def listed(picked) -> dict[int, list[bool]]:
    return {place: mask.tolist() for place, mask in picked.items()}


def test_a_loss_without_a_selection_looks_at_nothing(config) -> None:
    assert selected(Recipe(config()), step(2), [0], {}, Estimates(column([1.0, 1.0])), seed=0) is None


def test_means_and_shares_are_those_of_the_mini_batch_and_answers_those_of_its_places(config) -> None:
    """Places 2 and 3: mean advantage -.2 and mean log-prob -2, so the first token's covariance, 1.2, is the highest."""
    recipe = Recipe(config(algorithm={"loss": "kl_cov", "cov_ratio": 0.2}))
    estimates = Estimates(column([9.0, 9.0], [-9.0, -9.0], [1.0, 1.0], [-1.0, -1.0, -1.0]))
    logprobs = column([-0.1, -0.1], [-9.0, -9.0], [-1.0, -3.0], [-2.0, -2.0, -2.0])
    columns = {LOGPROBS: logprobs, BEHAVIOR: logprobs}
    picked = selected(recipe, step(2, 2, 2, 3), [2, 3], columns, estimates, seed=0)

    assert listed(picked) == {2: [True, False], 3: [False, False, False]}


def test_a_completion_without_tokens_has_none_to_pick_and_moves_no_other(config) -> None:
    """Covariances of the three tokens, whose means are 0 and -2: -1, 1 and 0."""
    recipe = Recipe(config(algorithm={"loss": "kl_cov", "cov_ratio": 0.4}))
    logprobs = column([-3.0], [], [-1.0, -2.0])
    columns, estimates = {LOGPROBS: logprobs, BEHAVIOR: logprobs}, Estimates(column([1.0], [], [1.0, -2.0]))
    picked = selected(recipe, step(1, 0, 2), [0, 1, 2], columns, estimates, seed=0)

    assert listed(picked) == {0: [False], 1: [], 2: [True, False]}


@pytest.mark.parametrize(
    ("correction", "expected"),
    [({}, {0: [False, False], 1: [False, True]}), ({"mode": "decoupled"}, {0: [True, False], 1: [False, True]})],
    ids=["the sampler", "the policy the step begins with"],
)
def test_a_token_is_clipped_already_by_its_ratio_to_whom_the_loss_compares_with(config, correction, expected) -> None:
    """Covariances are 1, -1, -1 and 1. To the sampler the first token's ratio is e, which is past the bound of 2."""
    recipe = Recipe(config(algorithm={**CLIP_COV, "cov_ratio": 1.0, "correction": correction}))
    columns = {LOGPROBS: column([-1.0, -3.0], [-1.0, -3.0]), BEHAVIOR: column([-2.0, -3.0], [-1.0, -3.0])}
    estimates = Estimates(column([1.0, 1.0], [-1.0, -1.0]))

    assert listed(selected(recipe, step(2, 2), [0, 1], columns, estimates, seed=0)) == expected


def test_chance_is_of_the_step_and_the_token_and_not_of_where_it_lies(config) -> None:
    """Four trajectories with covariances of 1 and -1 in turn; one more, -4 and 4, makes the mean advantage zero."""
    recipe = Recipe(config(algorithm={**CLIP_COV, "cov_high": 2.0, "cov_ratio": 0.2}))
    names = [(5, 0), (5, 1), (3, 0), (3, 1), (4, 0)]

    def picked(order: list[int], seed: int) -> dict[tuple[int, int], list[bool]]:
        advantages = column(*([-4.0 if place == 4 else 1.0] * 32 for place in order))
        logprobs = column(*[[-1.0, -3.0] * 16] * 5)
        ordered = step(*[32] * 5, names=[names[place] for place in order])
        columns = {LOGPROBS: logprobs, BEHAVIOR: logprobs}
        found = listed(selected(recipe, ordered, range(5), columns, Estimates(advantages), seed=seed))
        return {names[order[place]]: mask for place, mask in found.items()}

    first = picked([0, 1, 2, 3, 4], seed=7)
    assert sum(map(sum, first.values())) == 32, "a fifth of 160 tokens, and half of those in question"
    assert not any(first[4, 0])
    assert len({tuple(mask) for mask in first.values()}) == 5, "each trajectory has lots of its own"
    assert picked([4, 3, 2, 1, 0], seed=7) == first
    assert picked([0, 1, 2, 3, 4], seed=8) != first
