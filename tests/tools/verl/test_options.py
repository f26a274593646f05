"""The row of an option is found by its full key, a pattern, a former key, or the end of a key."""

import pytest

from asyncrl.config.config import Config
from asyncrl.tools.verl import options as tables
from asyncrl.tools.verl.lookup import ENDS, like, option_for, present
from asyncrl.tools.verl.options import TABLE
from asyncrl.tools.verl.overrides import Option
from tests.config.test_suggestions import keys


def test_the_longest_pattern_counts() -> None:
    assert option_for("data.shuffle") is TABLE["data.shuffle"]
    assert (
        option_for("actor_rollout_ref.model.override_config.model_config.x")
        is (TABLE["actor_rollout_ref.model.override_config.model_config.*"])
    )
    assert option_for("actor_rollout_ref.model.override_config.x") is TABLE["actor_rollout_ref.model.override_config.*"]
    assert option_for("data.nonsense") is option_for("nonsense") is None


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
    assert option_for(present(former)) is TABLE[key]


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


# ── test sampling ─────────────────────────────────────────────────────────────────────────────
# Every row of the tables of sampling has settings that exist, or a reason.

TABLES = {name: table for name, table in vars(tables).items() if isinstance(table, dict)}
ROWS = [(key, row) for table in TABLES.values() for key, row in table.items() if isinstance(row, Option)]


@pytest.mark.parametrize(("key", "row"), ROWS, ids=[key for key, _ in ROWS])
def test_a_row_has_settings_or_a_reason(key: str, row: Option) -> None:
    assert set(row.settings) <= keys(Config)
    assert row.settings if row.fate == "mapped" else row.note
    assert not row.note.endswith(".")
    assert key == key.strip()


# ── test training ─────────────────────────────────────────────────────────────────────────────
# Every row of the tables of training has settings that exist, or a reason.
