"""An unknown key is answered with the setting that was probably meant."""

import pytest

from asyncrl.config.config import Config
from asyncrl.config.suggestions import fields, unknown
from asyncrl.plan.sections import Plan


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("trainer.learning_rate", "did you mean 'trainer.lr'?"),
        ("learning.lr", "did you mean 'trainer.lr'?"),
        ("run.stepz", "did you mean 'run.steps'?"),
        ("run.zzzzzzzzzzzz", "expected one of: name, dir, share_with_group, steps, epochs, skip_steps, seed"),
        ("trainer.kl_coef", "did you mean 'algorithm.kl_coef'?"),
        ("algorithm.kl_ctrl.kl_coef", "that is verl's name; here it is 'algorithm.kl_reward_coef': "),
    ],
)
def test_the_setting_that_was_meant_is_named(name: str, answer: str) -> None:
    assert unknown(name, Config).startswith(f"unknown key {name!r}: {answer}")


def test_a_plan_is_not_answered_with_settings_of_runs() -> None:
    assert "trainer.lr'" not in unknown("trainer.learning_rate", Plan)


def test_fields_are_all_settings_and_sections() -> None:
    assert {"run", "run.steps", "rollout.vllm", "rollout.vllm.enforce_eager", "reward.parts.name"} <= dict(
        fields(Config)
    ).keys()
