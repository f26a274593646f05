import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.algo.advantages import (
    Estimator,
    centred,
    discounted,
    dr_grpo,
    gae,
    gdpo,
    gpg,
    groups,
    grpo,
    grpo_passk,
    on_every_token,
    opo,
    optimal_token_baseline,
    per_group,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    remax,
    resolve_advantage,
    rloo,
    standardized,
    value_targets,
    whitened,
)
from asyncrl.algo.outcomes import Advantages, Outcome
from asyncrl.config.catalogue import ADVANTAGES
from asyncrl.errors import AsyncrlError, ConfigError
from asyncrl.plug_in import REQUIRED
from tests.algo.advantages.padded import FORMULAS, Padded, gae_before_whitening, random_settings, random_step


def outcome(values: list[float], score: float) -> Outcome:
    return Outcome(group_id=1, length=len(values), reward=score, values=np.array(values))


def test_surprises_are_summed_ahead_and_whitened() -> None:
    # surprises 0 + 2 - 1 = 1 and 5 - 2 = 3; ahead 1 + .5 * 3 = 2.5 and 3; mean 2.75, variance .125
    advantages = gae([outcome([1.0, 2.0], 5.0)], lam=0.5)[0]

    assert advantages == pytest.approx(np.array([-0.25, 0.25]) / np.sqrt(0.125))


def test_targets_are_from_before_whitening() -> None:
    targets = value_targets([outcome([1.0, 2.0], 5.0), outcome([], 1.0)], lam=0.5)

    assert [part.tolist() for part in targets] == [[3.5, 5.0], []]


def test_looking_ahead_to_the_end_the_targets_are_the_returns() -> None:
    rng = np.random.default_rng(0)

    targets = value_targets([outcome(rng.normal(size=4).tolist(), 8.0)], gamma=0.5, lam=1.0)

    assert targets[0] == pytest.approx([1.0, 2.0, 4.0, 8.0])


def test_looking_one_token_ahead_the_targets_are_the_next_values() -> None:
    assert value_targets([outcome([1.0, 2.0, 3.0], 8.0)], gamma=0.5, lam=0.0)[0] == pytest.approx([1.0, 1.5, 8.0])


def test_a_critic_that_is_right_teaches_exactly_nothing() -> None:
    assert gae([outcome([1.0, 1.0], 1.0), outcome([2.0], 2.0)])[0].tolist() == [0.0, 0.0]


def test_targets_are_those_of_the_formula_on_padded_rectangles() -> None:
    rng = np.random.default_rng(1)
    for _ in range(100):
        step = random_step(rng)
        gamma, lam = rng.choice([1.0, 0.9]), rng.choice([0.0, 0.95, 1.0])
        expected = gae_before_whitening(step, gamma, lam) + step.values

        for row, part in enumerate(value_targets(step.outcomes(), gamma=gamma, lam=lam)):
            kept = expected[row][step.mask[row] == 1]
            np.testing.assert_allclose(part, kept, rtol=1e-6, atol=1e-6 * max(1.0, np.abs(step.values).max()))


# ── test gdpo ─────────────────────────────────────────────────────────────────────────────────


def group(*metrics: dict[str, float], reward: float = 0.0) -> list[Outcome]:
    return [Outcome(group_id=1, length=2, reward=reward, metrics=each) for each in metrics]


def flat(advantages: Advantages) -> np.ndarray:
    return np.concatenate(advantages)


def test_a_loud_reward_does_not_drown_a_quiet_one() -> None:
    """Each is brought to its own unit first, so that opposite rewards of whatever size cancel."""
    step = group({"loud": 1000.0, "quiet": 0.0}, {"loud": 0.0, "quiet": 0.1})

    assert flat(gdpo(step, reward_weights={"loud": 1.0, "quiet": 1.0})) == pytest.approx([0] * 4, abs=0.1)
    assert flat(gdpo(step, reward_weights={"loud": 2.0, "quiet": 1.0}))[0] > 0.5
    assert flat(gdpo(step, reward_weights={"loud": 1.0, "quiet": 2.0}))[0] < -0.5


def test_one_reward_alone_is_grpo_whitened() -> None:
    # A = +-a on two tokens each: mean 0, variance 4 a^2 / 3
    advantages = flat(gdpo(group({"right": 1.0}, {"right": 0.0}), reward_weights={"right": 1.0}))

    assert advantages == pytest.approx(np.sqrt(3 / 4) * np.array([1, 1, -1, -1]))


def test_rewards_that_are_all_equal_teach_exactly_nothing() -> None:
    assert not flat(gdpo(group({"right": 0.1}, {"right": 0.1}), reward_weights={"right": 1.0})).any()


def test_the_reward_of_the_verdict_is_one_of_the_metrics() -> None:
    step = [Outcome(group_id=1, length=1, reward=reward) for reward in (1.0, 0.0)]

    assert flat(gdpo(step, reward_weights={"reward": 1.0}))[0] > 0


def test_a_verdict_without_the_metric_is_told_with_what_it_has() -> None:
    with pytest.raises(ConfigError, match="names 'format', but a verdict of group 1 has only right, reward"):
        gdpo(group({"right": 1.0}, {"right": 1.0}), reward_weights={"format": 1.0})


def test_without_a_reward_there_is_nothing_to_compare() -> None:
    with pytest.raises(AsyncrlError, match=r"name some in algorithm\.reward_weights"):
        gdpo(group({"right": 1.0}), reward_weights={})


# ── test group baselines ──────────────────────────────────────────────────────────────────────

Function = Callable[[list[Outcome]], Advantages]


def group_baselines_group(*scores: float, lengths: list[int] | None = None, group_id: int = 1) -> list[Outcome]:
    lengths = lengths or [1] * len(scores)
    return [
        Outcome(group_id=group_id, length=length, reward=score) for score, length in zip(scores, lengths, strict=True)
    ]


def numbers(advantages: Advantages) -> list[float]:
    return [part[0].item() for part in advantages]


def seats(*rewards: tuple[int, float], group_id: int = 1) -> list[Outcome]:
    return [Outcome(group_id=group_id, length=1, seat=seat, reward=reward) for seat, reward in rewards]


def test_a_seat_is_compared_with_the_same_seat_of_other_episodes() -> None:
    """Seat 1 loses most games, and its one victory is no worse than those of seat 0."""
    games = seats((0, 1.0), (1, -1.0), (0, 1.0), (1, -1.0), (0, -1.0), (1, 1.0))
    third = 2 / 3
    advantages = numbers(resolve_advantage("dr_grpo").function(games))
    assert advantages == pytest.approx([third, -third, third, -third, -2 * third, 2 * third])


def test_what_is_whitened_is_whitened_seat_by_seat() -> None:
    alone = seats((0, 1.0), (0, 0.0), (0, 1.0))
    both = [*alone, *seats((1, -50.0), (1, 50.0))]
    whiten = resolve_advantage("reinforce_plus_plus").function
    assert numbers(whiten(both))[:3] == numbers(whiten(alone))


@pytest.mark.parametrize("name", ["grpo", "grpo_passk", "rloo"])
def test_a_seat_that_spoke_in_one_episode_alone_has_nobody_to_compare_with(name: str) -> None:
    games = seats((0, 1.0), (1, 5.0), (0, 0.0))
    advantages = numbers(resolve_advantage(name).function(games))
    assert advantages[1] == 0.0
    assert advantages[0] > 0.0


def test_grpo_divides_by_the_sample_standard_deviation() -> None:
    # mean 0.25, deviations -.25 -.25 .75 -.25, squares sum to .75, std = sqrt(.75 / 3) = .5
    assert numbers(grpo(group_baselines_group(0, 0, 1, 0))) == pytest.approx([-0.5, -0.5, 1.5, -0.5], abs=1e-5)


def test_dr_grpo_only_centres() -> None:
    assert numbers(dr_grpo(group_baselines_group(0, 0, 1, 0))) == [-0.25, -0.25, 0.75, -0.25]


def test_rloo_compares_with_the_mean_of_the_others() -> None:
    assert numbers(rloo(group_baselines_group(0, 0, 1, 0))) == pytest.approx([-1 / 3, -1 / 3, 1, -1 / 3])


def test_grpo_passk_rewards_only_the_best_and_by_its_lead() -> None:
    # mean 2, deviations -2 0 2, std = sqrt(8 / 2) = 2, lead 4 - 2 = 2
    assert numbers(grpo_passk(group_baselines_group(0, 4, 2))) == pytest.approx([0, 1, 0], abs=1e-6)
    assert numbers(grpo_passk(group_baselines_group(1, 0, 1))) == [0, 0, 0]


def test_grpo_passk_refuses_a_group_of_one_by_its_id() -> None:
    with pytest.raises(AsyncrlError, match=r"group 9 has only one; set schedule\.group_size to at least 2"):
        grpo_passk(group_baselines_group(0, 1) + group_baselines_group(1, group_id=9))


def test_opo_weighs_its_baseline_by_length() -> None:
    # (1 * 1 + 3 * 0) / 4
    assert numbers(opo(group_baselines_group(1, 0, lengths=[1, 3]))) == [0.75, -0.25]


def test_opo_of_a_group_without_a_token_is_nothing() -> None:
    assert [part.tolist() for part in opo(group_baselines_group(1, 0, lengths=[0, 0]))] == [[], []]


def test_gpg_makes_up_for_trajectories_that_got_nothing() -> None:
    # 2 of 6 got something: 6 / 2 times 1 - 1/2 and 1 - 1/4; if none did, the scale is still a number
    step = group_baselines_group(0, 1) + group_baselines_group(0, 0, 1, 0, group_id=2)
    assert numbers(gpg(step)) == pytest.approx([-1.5, 1.5, -0.75, -0.75, 2.25, -0.75])
    assert numbers(gpg(group_baselines_group(0, 0))) == [0, 0]


@pytest.mark.parametrize("function", [grpo, dr_grpo, grpo_passk, rloo, opo, gpg])
@pytest.mark.parametrize("score", [0.0, 1.0, 0.1, -1e9 / 3])
def test_equal_scores_teach_exactly_nothing(function: Function, score: float) -> None:
    """Exactly: the trainer leaves out what is zero, and a rounding error divided by 1e-6 would be a signal."""
    advantages = function(
        group_baselines_group(*[score] * 7, lengths=list(range(7))) + group_baselines_group(0, 1, group_id=2)
    )

    assert [part.tolist() for part in advantages[:7]] == [[0.0] * length for length in range(7)]


@pytest.mark.parametrize("function", [dr_grpo, rloo, opo, gpg])
def test_a_single_trajectory_keeps_what_it_got(function: Function) -> None:
    assert numbers(function(group_baselines_group(3.0))) == [3.0]


def test_a_single_trajectory_of_grpo_keeps_what_it_got_but_for_the_epsilon() -> None:
    assert numbers(grpo(group_baselines_group(3.0))) == [3.0 / (1 + 1e-6)]


@pytest.mark.parametrize("function", [grpo, dr_grpo, grpo_passk, rloo, opo, gpg])
def test_penalties_are_taken_from_the_score(function: Function) -> None:
    penalties = [np.array([0.5, -0.25]), np.array([0.0, 2.0])]
    scores = [1.0, 3.0]
    penalised = [
        Outcome(group_id=1, length=2, reward=score, penalties=part)
        for score, part in zip(scores, penalties, strict=True)
    ]

    assert numbers(function(penalised)) == numbers(function(group_baselines_group(0.75, 1.0, lengths=[2, 2])))


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=9), st.integers(-1000, 1000))
def test_a_group_is_judged_alike_wherever_its_scores_lie(scores: list[int], shift: int) -> None:
    values = np.array(scores, dtype=float)

    assert centred(values + shift) == pytest.approx(centred(values), abs=1e-9)
    assert standardized(values + shift) == pytest.approx(standardized(values), abs=1e-6)
    assert centred(values).sum() == pytest.approx(0, abs=1e-9)


# ── test groups ───────────────────────────────────────────────────────────────────────────────

SCATTERED = [Outcome(group_id=group, length=place, reward=place) for place, group in enumerate([5, 3, 5, 4, 3])]


def test_siblings_need_not_be_adjacent() -> None:
    assert groups(SCATTERED) == {5: [0, 2], 3: [1, 4], 4: [3]}


def test_numbers_of_groups_come_back_in_the_order_of_the_outcomes() -> None:
    numbers = per_group(SCATTERED, lambda group: np.full(len(group), 10.0 * len(group) + group[0].group_id))

    assert numbers.tolist() == [25, 23, 25, 14, 23]


def test_every_token_has_its_trajectorys_number_and_an_empty_one_has_none() -> None:
    spread = on_every_token(SCATTERED[:3], np.array([7.0, 8.0, 9.0]))

    assert [part.tolist() for part in spread] == [[], [8.0], [9.0, 9.0]]


# ── test reinforce ────────────────────────────────────────────────────────────────────────────


def reinforce_outcome(group_id: int, length: int, reward: float) -> Outcome:
    return Outcome(group_id=group_id, length=length, reward=reward)


def test_returns_are_whitened_over_the_step() -> None:
    # G = .5 1 | 0, mean .5, variance (0 + .25 + .25) / 2 = .25
    parts = reinforce_plus_plus([reinforce_outcome(1, 2, 1.0), reinforce_outcome(2, 1, 0.0)], gamma=0.5)

    assert [part.tolist() for part in parts] == [pytest.approx([0, 1]), pytest.approx([-1])]


def test_the_mean_is_over_tokens_and_not_over_trajectories() -> None:
    # s - mean = 1 -1, on tokens 1 -1 -1, mean -1/3, variance (16 + 4 + 4) / 9 / 2 = 4/3
    long, short = reinforce_plus_plus_baseline([reinforce_outcome(1, 1, 3.0), reinforce_outcome(1, 2, 1.0)])

    assert long == pytest.approx([4 / 3 / np.sqrt(4 / 3)])
    assert short == pytest.approx([-2 / 3 / np.sqrt(4 / 3)] * 2)


def test_a_group_of_one_keeps_its_reward_before_whitening() -> None:
    # 2 | 0 0, whitened: mean 2/3, variance (16 + 4 + 4) / 9 / 2 = 4/3
    alone, *equal = reinforce_plus_plus_baseline(
        [reinforce_outcome(1, 1, 2.0), reinforce_outcome(2, 1, 5.0), reinforce_outcome(2, 1, 5.0)]
    )

    assert alone == pytest.approx([4 / 3 / np.sqrt(4 / 3)])
    assert np.concatenate(equal) == pytest.approx([-2 / 3 / np.sqrt(4 / 3)] * 2)


def test_a_step_of_equal_rewards_has_advantages_of_exactly_zero() -> None:
    step = [reinforce_outcome(place // 2, 3, 0.1) for place in range(6)]

    for function in (reinforce_plus_plus, reinforce_plus_plus_baseline):
        assert not np.concatenate(function(step)).any()


@pytest.mark.parametrize("function", [reinforce_plus_plus, reinforce_plus_plus_baseline])
def test_a_step_of_one_token_has_no_advantage(function: Callable[..., Advantages]) -> None:
    assert function([reinforce_outcome(1, 1, 1.0)])[0].tolist() == [0.0]


def test_returns_are_compared_with_the_greedy_answer() -> None:
    # rewards -.5 0 3, returns 2.5 3 3, greedy 1
    reinforce_outcome = Outcome(group_id=1, length=3, reward=3.0, baseline=1.0, penalties=np.array([0.5, 0.0, 0.0]))

    assert remax([reinforce_outcome])[0].tolist() == [1.5, 2.0, 2.0]


def test_a_trajectory_as_good_as_the_greedy_answer_has_advantage_zero() -> None:
    assert remax([Outcome(group_id=1, length=2, reward=0.1, baseline=0.1)])[0].tolist() == [0.0, 0.0]


# ── test resolve ──────────────────────────────────────────────────────────────────────────────
# Every name in the table is what its formula says, and what a person wrote is looked at before it is trusted.

STEPS = 150
ESTIMATORS: dict[str, Estimator] = {name: resolve_advantage(name) for name in ADVANTAGES}


@pytest.mark.parametrize("name", ADVANTAGES)
def test_advantages_are_those_of_the_formula_on_padded_rectangles(name: str) -> None:
    estimator, formula = ESTIMATORS[name], FORMULAS[name]
    rng = np.random.default_rng(5)
    for _ in range(STEPS):
        step = random_step(rng, smallest_group=2 if name == "grpo_passk" else 1)
        settings = {key: value for key, value in random_settings(rng).items() if key in estimator.settings}

        advantages = estimator.function(step.outcomes(), **settings)

        _assert_agree(advantages, formula(step, **settings), step)


def _assert_agree(advantages: Sequence[np.ndarray], expected: np.ndarray, step: Padded) -> None:
    """To 1e-6 of the largest advantage: what cancels loses digits of what it was, in either formula."""
    assert len(advantages) == len(expected)
    atol = 1e-6 * max(1.0, np.abs(expected).max())
    for row, part in enumerate(advantages):
        assert part.dtype == np.float64
        np.testing.assert_allclose(part, expected[row][step.mask[row] == 1], rtol=1e-6, atol=atol)


@pytest.mark.parametrize("name", ADVANTAGES)
def test_a_step_whose_trajectories_are_in_another_order_has_the_same_advantages(name: str) -> None:
    """Siblings need not be adjacent, and no rank may see another number for having another order."""
    rng = np.random.default_rng(6)
    for _ in range(20):
        outcomes = random_step(rng, smallest_group=2).outcomes()
        settings = {key: value for key, value in random_settings(rng).items() if key in ESTIMATORS[name].settings}
        order = rng.permutation(len(outcomes))

        straight = ESTIMATORS[name].function(outcomes, **settings)
        shuffled = ESTIMATORS[name].function([outcomes[place] for place in order], **settings)

        largest = max(np.abs(part).max(initial=1.0) for part in straight)
        for place, part in zip(order, shuffled, strict=True):
            np.testing.assert_allclose(part, straight[place], rtol=1e-9, atol=1e-9 * largest)


def test_what_is_needed_is_what_is_read() -> None:
    """Without a field that it needs an estimator says so, and one that it does not need it never misses."""
    fields: dict[str, Any] = {
        "values": np.zeros(2),
        "logprobs": np.zeros(2),
        "sum_pi_squared": np.ones(2),
        "baseline": 0.5,
    }
    for name, estimator in ESTIMATORS.items():
        settings = {"reward_weights": {"reward": 1.0}} if "reward_weights" in estimator.settings else {}
        given: dict[str, Any] = {field: value for field, value in fields.items() if field in estimator.needs}
        plain: dict[str, Any] = {"group_id": 1, "length": 2, "reward": 1.0}
        estimator.function([Outcome(**plain, **given)] * 2, **settings)
        for missing in estimator.needs - {"token_rewards"}:  # None is no rewards of turns
            rest = {field: value for field, value in given.items() if field != missing}
            with pytest.raises(AsyncrlError, match=f"{name.removeprefix('tir_')} needs"):
                estimator.function([Outcome(**plain, **rest)] * 2, **settings)


@pytest.mark.parametrize("name", ADVANTAGES)
def test_penalties_count_exactly_where_the_table_says_so(name: str) -> None:
    rng = np.random.default_rng(7)
    estimator = ESTIMATORS[name]
    settings = {"reward_weights": {"reward": 1.0}} if "reward_weights" in estimator.settings else {}

    def advantages(penalties: Sequence[np.ndarray]) -> np.ndarray:
        arrays: dict[str, Any] = {
            "values": np.zeros(3),
            "logprobs": np.full(3, -0.5),
            "sum_pi_squared": np.full(3, 0.9),
        }
        outcomes = [
            Outcome(group_id=1, length=3, reward=float(place), baseline=0.0, penalties=part, **arrays)
            for place, part in enumerate(penalties)
        ]
        return np.concatenate(estimator.function(outcomes, **settings))

    without, with_penalties = advantages([np.zeros(3)] * 3), advantages(list(rng.uniform(0, 1, size=(3, 3))))

    assert np.allclose(without, with_penalties) is not ADVANTAGES[name].counts_penalties


def test_settings_are_those_of_the_configuration() -> None:
    assert ESTIMATORS["gae"].settings == {"gamma": 1.0, "lam": 1.0}
    assert ESTIMATORS["gdpo"].settings == {"reward_weights": REQUIRED}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(
        "import numpy as np\n"
        "def halved(outcomes, *, gamma=0.5): return [np.full(o.length, gamma * o.reward) for o in outcomes]\n"
        "def lists(outcomes): return [[1] * o.length for o in outcomes]\n"
        "def critic(outcomes): return [o.values for o in outcomes]\n"
        "critic.needs = {'values'}\n"
        "def nosy(outcomes): ...\n"
        "nosy.needs = {'entropy'}\n"
        "def powered(outcomes, *, gamma=0.5, power): return [np.full(o.length, o.reward**power) for o in outcomes]\n"
        "def positional(outcomes, gamma): ...\n"
        "def nothing(outcomes): ...\n"
        "def scores(outcomes): return [o.reward for o in outcomes]\n"
        "def words(outcomes): return [['a'] * o.length for o in outcomes]\n"
        "def short(outcomes): return lists(outcomes)[1:]\n"
        "def infinite(outcomes): return [np.full(o.length, np.inf) for o in outcomes]\n"
    )
    return path


OUTCOMES = [Outcome(group_id=1, length=2, reward=4.0), Outcome(group_id=1, length=0, reward=1.0)]


def test_a_persons_function_is_an_estimator_like_any_other(file: Path) -> None:
    halved, critic = resolve_advantage(f"{file}:halved"), resolve_advantage(f"{file}:critic")

    assert halved.settings == {"gamma": 0.5}
    assert [part.tolist() for part in halved.function(OUTCOMES)] == [[2.0, 2.0], []]
    assert [part.tolist() for part in halved.function(OUTCOMES, gamma=1.0)] == [[4.0, 4.0], []]
    assert halved.needs == frozenset()
    assert critic.needs == {"values"}


def test_options_are_bound_and_are_no_settings(file: Path) -> None:
    powered = resolve_advantage(f"{file}:powered", {"power": 2.0})

    assert powered.settings == {"gamma": 0.5}
    assert [part.tolist() for part in powered.function(OUTCOMES)] == [[16.0, 16.0], []]


def test_what_it_returns_becomes_float64(file: Path) -> None:
    advantages = resolve_advantage(f"{file}:lists").function(OUTCOMES)

    assert [part.dtype for part in advantages] == [np.float64, np.float64]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gpro", "did you mean 'grpo'?"),
        ("zebra", "expected one of: grpo, dr_grpo,"),
        ("{dir}/mime.py:halved", "there is no file"),
        ("{dir}/mine.py:halve", "did you mean 'halved'?"),
        ("{dir}/mine.py:powered", "needs 'power', which is neither a setting nor given in algorithm.advantage_options"),
        (
            "{dir}/mine.py:positional",
            "def positional(outcomes, *, <settings and options>), but 'gamma' is not keyword-only",
        ),
        ("{dir}/mine.py:nosy", "needs entropy, but there is only values, logprobs, sum_pi_squared, baseline"),
    ],
)
def test_what_is_no_estimator_is_refused_in_one_sentence(file: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        resolve_advantage(name.format(dir=file.parent))

    assert "algorithm.advantage" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", "must return an array of numbers for each trajectory: 'NoneType'"),
        ("words", "must return an array of numbers for each trajectory: could not convert"),
        ("scores", "returned an array of shape [] for trajectory 0, expected [2], one number per token"),
        ("short", "returned 1 arrays for 2 trajectories"),
        ("infinite", "returned inf for trajectory 0, expected finite numbers"),
    ],
)
def test_what_is_no_advantage_is_refused_in_one_sentence_that_names_the_function(
    file: Path, name: str, said: str
) -> None:
    estimator = resolve_advantage(f"{file}:{name}")

    with pytest.raises(AsyncrlError, match=re.escape(said)) as caught:
        estimator.function(OUTCOMES)

    assert f"mine.py:{name}'" in str(caught.value)


# ── test returns ──────────────────────────────────────────────────────────────────────────────


def test_what_comes_later_counts_less() -> None:
    # 1 + .5 (2 + .5 * 4) = 3
    parts = discounted([np.array([1.0, 2.0, 4.0]), np.zeros(0), np.array([3.0])], 0.5)

    assert [part.tolist() for part in parts] == [[3.0, 4.0, 4.0], [], [3.0]]


def test_nothing_is_written_to_what_came_in() -> None:
    gains = [np.ones(3)]

    discounted(gains, 1.0)

    assert gains[0].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("gains", [[], [np.zeros(0)], [np.zeros(0), np.zeros(0)]])
def test_there_may_be_no_tokens(gains: list[np.ndarray]) -> None:
    assert [part.tolist() for part in discounted(gains, 0.9)] == [[] for _ in gains]


def test_walking_all_at_once_is_walking_one_by_one() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        gains = [rng.normal(size=length) for length in rng.integers(0, 12, size=rng.integers(1, 8))]
        discount = rng.choice([0.0, 0.9, 1.0])
        for part, found in zip(gains, discounted(gains, discount), strict=True):
            powers = discount ** np.arange(len(part))
            assert found == pytest.approx([powers[: len(part) - t] @ part[t:] for t in range(len(part))])


# ── test token baseline ───────────────────────────────────────────────────────────────────────

HALF = float(np.log(0.5))


def token_baseline_outcome(score: float, weights: list[float], importance: list[float] | None = None) -> Outcome:
    """Outcome whose tokens have these weights: with p = 1/2, w is the sum of squares."""
    return Outcome(
        group_id=1,
        length=len(weights),
        reward=score,
        logprobs=np.full(len(weights), HALF),
        sum_pi_squared=np.array(weights),
        importance=None if importance is None else np.array(importance),
    )


def test_siblings_count_by_the_weights_of_their_tokens_so_far() -> None:
    # baselines (1 * 4 + 3 * 0) / 4 = 1 and (2 * 4 + 6 * 0) / 8 = 1, then (3 * 4 + 6 * 0) / 9 = 4/3
    high, low = optimal_token_baseline(
        [token_baseline_outcome(4.0, [1.0, 1.0, 1.0]), token_baseline_outcome(0.0, [3.0, 3.0, 0.0])]
    )

    assert high == pytest.approx([3, 3, 4 - 4 / 3])
    assert low == pytest.approx([-1, -1, -4 / 3])


def test_where_the_longest_is_alone_there_is_no_baseline() -> None:
    long, short = optimal_token_baseline(
        [token_baseline_outcome(4.0, [1.0, 1.0, 1.0]), token_baseline_outcome(0.0, [1.0])]
    )

    assert long == pytest.approx([2, 4, 4])
    assert short == pytest.approx([-2])


def test_a_group_of_one_and_an_empty_sibling_leave_no_baseline() -> None:
    assert optimal_token_baseline([token_baseline_outcome(4.0, [1.0, 1.0])])[0].tolist() == [4.0, 4.0]
    assert [
        part.tolist()
        for part in optimal_token_baseline([token_baseline_outcome(4.0, [1.0]), token_baseline_outcome(1.0, [])])
    ] == [[4.0], []]


def test_importance_counts_squared() -> None:
    # weights 1 and 2^2 * 1: baseline (4 + 0) / 5
    high, low = optimal_token_baseline(
        [token_baseline_outcome(4.0, [1.0], [1.0]), token_baseline_outcome(0.0, [1.0], [2.0])]
    )

    assert high == pytest.approx([4 - 4 / 5])
    assert low == pytest.approx([-4 / 5])


def test_where_everybody_was_certain_there_is_no_baseline() -> None:
    certain = Outcome(group_id=1, length=1, reward=2.0, logprobs=np.zeros(1), sum_pi_squared=np.ones(1))

    assert [part.tolist() for part in optimal_token_baseline([certain, certain])] == [[2.0], [2.0]]


# ── test whiten ───────────────────────────────────────────────────────────────────────────────


def test_mean_is_zero_and_variance_one_over_all_tokens() -> None:
    # mean 2, deviations -2 0 2, variance 8 / 2 = 4
    parts = whitened([np.array([0.0, 2.0]), np.zeros(0), np.array([4.0])])

    assert [part.tolist() for part in parts] == [pytest.approx([-1, 0]), [], pytest.approx([1])]


@pytest.mark.parametrize("value", [0.0, 0.1, -1e9 / 3])
def test_tokens_that_are_all_equal_become_exactly_zero(value: float) -> None:
    parts = whitened([np.full(3, value), np.full(4, value)])

    assert [part.tolist() for part in parts] == [[0.0] * 3, [0.0] * 4]


@pytest.mark.parametrize("parts", [[], [np.zeros(0)], [np.ones(1), np.zeros(0)]])
def test_fewer_than_two_tokens_do_not_differ_and_become_zero(parts: list[np.ndarray]) -> None:
    assert [part.tolist() for part in whitened(parts)] == [[0.0] * len(part) for part in parts]
