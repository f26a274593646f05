"""Limits of multi-turn rollouts are those of episodes; their tools are for the user to write."""

import pytest

from asyncrl.config.run_file import decode
from tests.verl.launches import fate, raw, settings, translated

R = "actor_rollout_ref.rollout"
M = f"{R}.multi_turn"
TOOLS = f"{M}.tool_config_path=sandbox.yaml"
RETOOL = (
    f"{M}.enable=True",
    f"{M}.max_user_turns=8",
    f"{M}.max_assistant_turns=8",
    TOOLS,
    f"{M}.format=hermes",
    "data.max_response_length=2048",
)


def test_a_launch_with_tools_becomes_a_run_of_episodes_whose_tools_are_still_to_be_named() -> None:
    found = settings("fully_async", *RETOOL)
    assert {key: value for key, value in found.items() if key.startswith("environment.")} == {
        "environment.tools": ["tools.py:NAME"],
        "environment.max_tokens": 2048,
        "environment.max_turns": 8,
        "environment.tool_parser": "hermes",
    }
    translation = translated("fully_async", *RETOOL)
    assert translation.verdict == "cannot"
    assert "put in the names of your tools" in translation.toml
    assert decode(raw(translation)).environment.is_set, "the file passes the check of settings"


def test_what_to_write_is_said_for_tools_interactions_and_agent_loops() -> None:
    assert fate("synchronous", TOOLS) == (
        "not supported",
        "write the tools as typed functions and name them in environment.tools: docs/environments.md",
    )
    for option in (
        f"{M}.interaction_config_path=judge.yaml",
        f"{R}.agent.default_agent_loop=react_agent",
        f"{R}.agent.agent_loop_config_path=loops.yaml",
    ):
        what, why = fate("synchronous", option)
        assert (what, "environment.function" in why) == ("not supported", True)
        assert "environment.tools" in settings("synchronous", option)


@pytest.mark.parametrize(
    ("limits", "turns"),
    [
        ((f"{M}.max_assistant_turns=5",), 5),
        ((f"{M}.max_user_turns=5",), 6),
        ((f"{M}.max_assistant_turns=5", f"{M}.max_user_turns=2"), 3),
        ((), None),
    ],
)
def test_the_policy_has_one_turn_more_than_answers(limits: tuple[str, ...], turns: int | None) -> None:
    assert settings("synchronous", TOOLS, *limits).get("environment.max_turns") == turns


def test_one_turn_may_be_shorter_than_the_episode() -> None:
    found = settings("synchronous", TOOLS, "data.max_response_length=900", f"{R}.single_turn_response_length=300")
    assert (found["environment.max_tokens"], found["sampling.max_tokens"]) == (900, 300)
    assert found["trainer.max_tokens_per_micro_batch"] >= 900


def test_a_form_of_calls_that_is_not_known_is_that_of_the_chat_template() -> None:
    assert settings("synchronous", TOOLS, f"{M}.format=qwen3_coder")["environment.tool_parser"] == "qwen_xml"
    assert "environment.tool_parser" not in settings("synchronous", TOOLS, f"{M}.format=mine")
    assert fate("synchronous", f"{M}.format=mine", TOOLS)[0] == "substituted"


@pytest.mark.parametrize("option", [f"{M}.enable=True", f"{R}.agent.default_agent_loop=tool_agent"])
def test_without_tools_there_is_one_turn(option: str) -> None:
    assert not [key for key in settings("synchronous", option) if key.startswith("environment.")]
    assert translated("synchronous", option, f"{M}.max_user_turns=8").verdict == "runs"


def test_what_an_episode_does_otherwise_is_said() -> None:
    assert fate("synchronous", f"{M}.max_parallel_calls=2", TOOLS)[0] == "substituted"
    assert fate("synchronous", f"{M}.max_tool_response_length=256", TOOLS)[0] == "substituted"
    assert fate("synchronous", f"{M}.tokenization_sanity_check_mode=disable", TOOLS)[0] == "not needed"
