import pytest

from asyncrl.environment.interface import CalledTool
from asyncrl.rollout.episodes.tool_calls.hermes import parse


def test_a_call_is_json_between_tags() -> None:
    found = parse('Look.\n<tool_call>\n{"name": "add", "arguments": {"a": "水\\n"}}\n</tool_call>', {})
    assert found.content == "Look."
    assert found.calls == [CalledTool(name="add", arguments={"a": "水\n"})]


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ("add(1)", "is not valid JSON"),
        ('{"arguments": {}}', 'has no "name"'),
        ('{"name": "f", "arguments": 5}', "of f has"),
    ],
)
def test_other_blocks_are_problems(block: str, problem: str) -> None:
    (call,) = parse(f"<tool_call>{block}</tool_call>", {}).calls
    assert call.problem.startswith("the call ")
    assert problem in call.problem
