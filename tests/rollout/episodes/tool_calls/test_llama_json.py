import pytest

from asyncrl.rollout.episodes.tool_calls.llama_json import parse


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        ('{"name": "f", "parameters": {"a": 1}}', [("f", {"a": 1})], ""),
        ('<|python_tag|>{"name": "f", "parameters": {}}', [("f", {})], ""),
        (' {"name": "f", "arguments": {"a": 1}}; {"name": "g"};', [("f", {"a": 1}), ("g", {})], ""),
        ('Look. <|python_tag|>{"name": "f"}', [("f", {})], "Look."),
        ('{"answer": 5}', [], '{"answer": 5}'),
        ('I call {"name": "f"}', [], 'I call {"name": "f"}'),
    ],
)
def test_a_turn_is_calls_or_content(text: str, calls: list[object], content: str) -> None:
    found = parse(text, {})
    assert [(call.name, call.arguments) for call in found.calls] == calls
    assert found.content == content


@pytest.mark.parametrize("text", ['{"name": "f"', "<|python_tag|>print(5)", '{"name": "f"} and more'])
def test_a_turn_that_begins_as_a_call_and_goes_on_otherwise_is_a_problem(text: str) -> None:
    assert "not valid JSON" in parse(text, {}).calls[-1].problem
