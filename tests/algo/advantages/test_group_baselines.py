from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.algo.advantages.group_baselines import centred, dr_grpo, gpg, grpo, grpo_passk, opo, rloo, standardized
from asyncrl.algo.outcomes import Advantages, Outcome
from asyncrl.errors import AsyncrlError

Function = Callable[[list[Outcome]], Advantages]


def group(*scores: float, lengths: list[int] | None = None, group_id: int = 1) -> list[Outcome]:
    lengths = lengths or [1] * len(scores)
    return [
        Outcome(group_id=group_id, length=length, reward=score) for score, length in zip(scores, lengths, strict=True)
    ]


def numbers(advantages: Advantages) -> list[float]:
    return [part[0].item() for part in advantages]


def test_grpo_divides_by_the_sample_standard_deviation() -> None:
    # mean 0.25, deviations -.25 -.25 .75 -.25, squares sum to .75, std = sqrt(.75 / 3) = .5
    assert numbers(grpo(group(0, 0, 1, 0))) == pytest.approx([-0.5, -0.5, 1.5, -0.5], abs=1e-5)


def test_dr_grpo_only_centres() -> None:
    assert numbers(dr_grpo(group(0, 0, 1, 0))) == [-0.25, -0.25, 0.75, -0.25]


def test_rloo_compares_with_the_mean_of_the_others() -> None:
    assert numbers(rloo(group(0, 0, 1, 0))) == pytest.approx([-1 / 3, -1 / 3, 1, -1 / 3])


def test_grpo_passk_rewards_only_the_best_and_by_its_lead() -> None:
    # mean 2, deviations -2 0 2, std = sqrt(8 / 2) = 2, lead 4 - 2 = 2
    assert numbers(grpo_passk(group(0, 4, 2))) == pytest.approx([0, 1, 0], abs=1e-6)
    assert numbers(grpo_passk(group(1, 0, 1))) == [0, 0, 0]


def test_grpo_passk_refuses_a_group_of_one_by_its_id() -> None:
    with pytest.raises(AsyncrlError, match=r"group 9 has only one; set schedule\.group_size to at least 2"):
        grpo_passk(group(0, 1) + group(1, group_id=9))


def test_opo_weighs_its_baseline_by_length() -> None:
    # (1 * 1 + 3 * 0) / 4
    assert numbers(opo(group(1, 0, lengths=[1, 3]))) == [0.75, -0.25]


def test_opo_of_a_group_without_a_token_is_nothing() -> None:
    assert [part.tolist() for part in opo(group(1, 0, lengths=[0, 0]))] == [[], []]


def test_gpg_makes_up_for_trajectories_that_got_nothing() -> None:
    # 2 of 6 got something: 6 / 2 times 1 - 1/2 and 1 - 1/4; if none did, the scale is still a number
    step = group(0, 1) + group(0, 0, 1, 0, group_id=2)
    assert numbers(gpg(step)) == pytest.approx([-1.5, 1.5, -0.75, -0.75, 2.25, -0.75])
    assert numbers(gpg(group(0, 0))) == [0, 0]


@pytest.mark.parametrize("function", [grpo, dr_grpo, grpo_passk, rloo, opo, gpg])
@pytest.mark.parametrize("score", [0.0, 1.0, 0.1, -1e9 / 3])
def test_equal_scores_teach_exactly_nothing(function: Function, score: float) -> None:
    """Exactly: the trainer leaves out what is zero, and a rounding error divided by 1e-6 would be a signal."""
    advantages = function(group(*[score] * 7, lengths=list(range(7))) + group(0, 1, group_id=2))

    assert [part.tolist() for part in advantages[:7]] == [[0.0] * length for length in range(7)]


@pytest.mark.parametrize("function", [dr_grpo, rloo, opo, gpg])
def test_a_single_trajectory_keeps_what_it_got(function: Function) -> None:
    assert numbers(function(group(3.0))) == [3.0]


def test_a_single_trajectory_of_grpo_keeps_what_it_got_but_for_the_epsilon() -> None:
    assert numbers(grpo(group(3.0))) == [3.0 / (1 + 1e-6)]


@pytest.mark.parametrize("function", [grpo, dr_grpo, grpo_passk, rloo, opo, gpg])
def test_penalties_are_taken_from_the_score(function: Function) -> None:
    penalties = [np.array([0.5, -0.25]), np.array([0.0, 2.0])]
    scores = [1.0, 3.0]
    penalised = [
        Outcome(group_id=1, length=2, reward=score, penalties=part)
        for score, part in zip(scores, penalties, strict=True)
    ]

    assert numbers(function(penalised)) == numbers(function(group(0.75, 1.0, lengths=[2, 2])))


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=9), st.integers(-1000, 1000))
def test_a_group_is_judged_alike_wherever_its_scores_lie(scores: list[int], shift: int) -> None:
    values = np.array(scores, dtype=float)

    assert centred(values + shift) == pytest.approx(centred(values), abs=1e-9)
    assert standardized(values + shift) == pytest.approx(standardized(values), abs=1e-6)
    assert centred(values).sum() == pytest.approx(0, abs=1e-9)
