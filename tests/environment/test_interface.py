"""The interface of a rollout to environments, and the classes of user code that it mirrors."""

import dataclasses

import msgspec
import pytest

from asyncrl import environment
from asyncrl.config.sections.environment import Environment
from asyncrl.environment import interface
from asyncrl.environment.pool import EnvironmentPool


@pytest.mark.parametrize(
    ("wire", "user"),
    [
        (interface.TaskInput, environment.Task),
        (interface.CalledTool, environment.ToolCall),
        (interface.PolicyTurn, environment.Said),
        (interface.Answer, environment.Step),
    ],
)
def test_user_code_sees_the_fields_that_are_sent(wire: type[msgspec.Struct], user: type) -> None:
    assert {field.name for field in msgspec.structs.fields(wire)} == {field.name for field in dataclasses.fields(user)}


def test_the_pool_implements_the_interface() -> None:
    environments: interface.Environments = EnvironmentPool(Environment(tools=["calculator"]), "run", "node")
    episode: interface.EnvironmentEpisode = environments.open("run/train/1/0")

    assert episode
