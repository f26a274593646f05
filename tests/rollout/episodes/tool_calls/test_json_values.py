from typing import Any

import pytest

from asyncrl.rollout.episodes.tool_calls.found import UnreadableCall
from asyncrl.rollout.episodes.tool_calls.json_values import named_call, read_object, typed


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not valid JSON"),
        ("NaN", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"a": 99999999999999999999999}', "not valid JSON"),
        ('{"a": "\\ud800"}', "not valid JSON"),
        ("[1]", "a list, expected a JSON object"),
        ('"a"', "a string, expected"),
        ("true", "a boolean, expected"),
    ],
)
def test_only_objects_that_can_be_sent_are_read(text: str, problem: str) -> None:
    with pytest.raises(UnreadableCall, match=problem):
        read_object(text)


@pytest.mark.parametrize(
    ("value", "call"),
    [
        ({"name": "f", "arguments": {"a": 1}}, ("f", {"a": 1})),
        ({"name": "f", "arguments": '{"a": 1}'}, ("f", {"a": 1})),
        ({"name": "f"}, ("f", {})),
    ],
)
def test_arguments_are_an_object_a_text_or_missing(value: dict[str, Any], call: tuple[str, dict[str, Any]]) -> None:
    assert named_call(value, "arguments") == call


@pytest.mark.parametrize("value", [{}, {"name": 5}, {"name": ""}, {"name": "f", "arguments": [1]}])
def test_a_call_without_a_name_or_with_other_arguments_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(UnreadableCall):
        named_call(value, "arguments")


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("5", "string", "5"),
        ("5", ["string", "null"], "5"),
        ("5", "integer", 5),
        ("True", "boolean", True),
        ("true", "boolean", True),
        ("None", "integer", None),
        ("[1, 2]", "array", [1, 2]),
        ("five", "integer", "five"),
        ("5", None, 5),
        ('"5"', None, '"5"'),
        ("a b", None, "a b"),
    ],
)
def test_values_have_the_type_of_their_schema(text: str, kind: object, value: object) -> None:
    assert typed(text, {"type": kind} if kind else None) == value
