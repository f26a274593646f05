"""Settings of ``[algorithm]`` beside custom functions, which are known only once they are loaded."""

from functools import partial
from typing import Any

import pytest

from asyncrl.config.config import Config
from asyncrl.errors import ConfigError
from asyncrl.trainer.algorithm.recipe import VALUES, Recipe

OWN = """
def plain(outcomes, *, gamma=1.0):
    return [outcome.rewards for outcome in outcomes]

def judged(outcomes):
    return [outcome.rewards - outcome.values for outcome in outcomes]

judged.needs = {"values"}
"""


@pytest.fixture
def own(config, tmp_path):
    """``own("plain", gamma=0.9)``: a configuration with an estimator from a file."""
    path = tmp_path / "own.py"
    path.write_text(OWN)

    def build(name: str, critic: dict[str, Any] | None = None, **algorithm: object) -> Config:
        return config(algorithm={"advantage": f"{path}:{name}", **algorithm}, critic=critic or {})

    return build


def test_a_custom_function_may_have_a_critic_and_its_settings(own):
    recipe = Recipe(own("judged", critic={"lr": 1e-3}, gamma=0.9, lam=0.8))
    assert recipe.wanted == {VALUES}
    assert isinstance(recipe.value_targets, partial)
    assert recipe.value_targets.keywords == {"gamma": 0.9, "lam": 0.8}


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"lam": 0.8}, "algorithm.lam is not read"),
        ({"tau_pos": 2.0}, "algorithm.tau_pos is not read"),
        ({"critic": {"lr": 1e-3}}, r"\[critic\] is not read"),
    ],
)
def test_settings_that_nothing_reads_are_refused(own, setting, said):
    assert Recipe(own("plain", gamma=0.9, clip_low=0.1)).advantages.keywords == {"gamma": 0.9}
    with pytest.raises(ConfigError, match=said):
        Recipe(own("plain", **setting))


def test_the_divisor_of_dr_grpo_is_the_longest_trajectory(config):
    algorithm = {"aggregation": "seq-mean-token-sum-norm"}
    environment = {"function": "unused.py:Unused", "max_tokens": 90}
    assert Recipe(config(algorithm=algorithm)).token_weights([5, 7], [0, 1]) == [1 / (2 * 20)] * 2
    assert Recipe(config(algorithm=algorithm, environment=environment)).token_weights([5], [0]) == [1 / 90]


def test_a_mean_over_prompts_weighs_groups_alike_and_their_tokens_alike(config):
    recipe = Recipe(config(algorithm={"aggregation": "prompt-mean"}))
    weights = recipe.token_weights([5, 0, 15, 4], [7, 7, 7, 9])
    assert weights == [1 / (2 * 20)] * 3 + [1 / (2 * 4)]


def test_a_prompt_of_which_every_token_is_rejected_counts_among_prompts(config):
    recipe = Recipe(config(algorithm={"aggregation": "prompt-mean"}))
    assert recipe.token_weights([0, 0, 4], [7, 7, 9])[2] == 1 / (2 * 4)


def test_a_custom_function_may_read_where_rewards_were_given(config, tmp_path):
    (tmp_path / "own.py").write_text(
        "def own(outcomes):\n    return [one.rewards for one in outcomes]\n\nown.needs = {'token_rewards'}\n"
    )
    algorithm = {"advantage": f"{tmp_path / 'own.py'}:own"}
    assert Recipe(config(algorithm=algorithm, environment={"tools": ["calculator"]})).reads_token_rewards
    assert not Recipe(config(algorithm=algorithm)).reads_token_rewards


@pytest.mark.parametrize(("staleness", "keywords"), [(1, {}), (16, {"clip_high": 4.0})])
def test_the_bound_of_the_loss_is_that_for_the_age_of_its_trajectories(config, staleness, keywords):
    losses = Recipe(config(schedule={"staleness": staleness})).losses
    assert isinstance(losses, partial)
    assert losses.keywords == keywords
