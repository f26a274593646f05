"""Every name in the table is what its formula says, and what a person wrote is looked at before it is trusted."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl.algo.advantages.resolve import Estimator, resolve_advantage
from asyncrl.algo.outcomes import Outcome
from asyncrl.config.catalogue import ADVANTAGES
from asyncrl.errors import AsyncrlError, ConfigError
from asyncrl.plug_in import REQUIRED
from tests.algo.advantages.padded import FORMULAS, Padded, random_settings, random_step

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
