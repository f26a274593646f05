"""A recipe reads verl's options by their present names, with defaults for absent ones."""

import pytest

from asyncrl.errors import ConfigError
from asyncrl.tools.verl.recipe import LaunchRecipe
from tests.tools.verl.launches import launch


def test_an_absent_or_null_option_has_the_default() -> None:
    recipe = LaunchRecipe(launch("synchronous", "data.seed=null"))
    assert recipe.get("data.seed", 7) == recipe.get("data.other", 7) == 7


def test_a_former_key_is_read_by_its_present_name() -> None:
    recipe = LaunchRecipe(launch("synchronous", "reward_model.reward_manager=dapo", "custom_reward_function.path=a.py"))
    assert recipe.get("reward.reward_manager.name") == "dapo"
    assert recipe.get("reward.custom_reward_function.path") == "a.py"


def test_a_word_in_place_of_a_number_is_refused() -> None:
    recipe = LaunchRecipe(launch("synchronous", "trainer.nnodes=two"))
    with pytest.raises(ConfigError, match=r"trainer.nnodes=two: expected a number such as 1"):
        recipe.get("trainer.nnodes", 1)


def test_a_value_that_cannot_be_converted_is_refused() -> None:
    recipe = LaunchRecipe(launch("synchronous", "data.train_max_samples=all"))
    with pytest.raises(ConfigError, match=r"data.train_max_samples=all: the value has a wrong type"):
        recipe.apply_conversions()


def test_options_below_a_prefix_are_by_the_rest_of_their_keys() -> None:
    recipe = LaunchRecipe(launch("synchronous", "+data.apply_chat_template_kwargs.enable_thinking=False"))
    assert recipe.below("data.apply_chat_template_kwargs") == {"enable_thinking": False}
