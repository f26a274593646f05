import pytest

from asyncrl.rollout.episodes.tool_calls.glm import parse


def test_arguments_are_pairs_of_tags() -> None:
    pairs = "<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n<arg_value> x\n</arg_value>\n"
    (call,) = parse(f"<tool_call>add\n{pairs}</tool_call>", {"add": {"a": {"type": "string"}}}).calls
    assert (call.name, call.arguments) == ("add", {"a": "1", "b": " x\n"})


def test_a_call_may_have_no_arguments() -> None:
    assert parse("<tool_call>look</tool_call>", {}).calls[0].name == "look"


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ("", "has no name"),
        ("f<arg_key>a</arg_key>", "of f has <arg_key>a without"),
        ("f<arg_key>a</arg_key><arg_value>", "of f"),
    ],
)
def test_other_blocks_are_problems(block: str, problem: str) -> None:
    (call,) = parse(f"<tool_call>{block}</tool_call>", {}).calls
    assert call.problem.startswith(f"the call {problem}")
