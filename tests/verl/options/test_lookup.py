"""The row of an option is found by its full key, a pattern, a former key, or the end of a key."""

import pytest

from asyncrl.verl.options.lookup import ENDS, TABLE, like, of, present


def test_the_longest_pattern_counts() -> None:
    assert of("data.shuffle") is TABLE["data.shuffle"]
    assert (
        of("actor_rollout_ref.model.override_config.model_config.x")
        is (TABLE["actor_rollout_ref.model.override_config.model_config.*"])
    )
    assert of("actor_rollout_ref.model.override_config.x") is TABLE["actor_rollout_ref.model.override_config.*"]
    assert of("data.nonsense") is of("nonsense") is None


@pytest.mark.parametrize(
    ("former", "key"),
    [
        ("reward_model.reward_manager", "reward.reward_manager.name"),
        ("reward_model.reward_kwargs.max_resp_len", "reward.reward_kwargs.max_resp_len"),
        ("reward_model.enable", "reward.reward_model.enable"),
        ("custom_reward_function.path", "reward.custom_reward_function.path"),
        ("sandbox_fusion.url", "reward.sandbox_fusion.url"),
    ],
)
def test_a_former_key_has_the_row_of_its_present_name(former: str, key: str) -> None:
    assert present(former) == key
    assert of(present(former)) is TABLE[key]


def test_a_present_name_stays() -> None:
    for key in TABLE:
        assert present(key) == key


def test_a_shortened_name_finds_the_row_that_people_mean() -> None:
    assert like("nnodes") is TABLE["trainer.nnodes"]
    assert like("param_offload") is TABLE["actor_rollout_ref.actor.fsdp_config.param_offload"]
    assert like("tensor_model_parallel_size") is TABLE["actor_rollout_ref.rollout.tensor_model_parallel_size"]


def test_a_word_that_means_anything_finds_nothing() -> None:
    assert [word for word in ENDS if "." not in word and "_" not in word] == ["nnodes", "logger"]
    assert like("n") is like("path") is like("trainer.lr") is None
