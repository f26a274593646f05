"""Kinds of malformed calls, by which an episode counts them."""

from typing import Any

import pytest

from asyncrl.engine import CalledTool
from asyncrl.episodes.call_forms import parse_hermes
from asyncrl.episodes.tool_calls import ParsedText, judged

ADD: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": ["string", "null"]}, "c": {"anyOf": [{"type": "number"}]}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', ""),
        ('<tool_call>{"name": "add", "arguments": {"a": 1.0, "b": null, "c": 2}}</tool_call>', ""),
        ('<tool_call>{"name": "add", "arguments": {"a": 1}</tool_call>', "json"),
        ('<tool_call>["add"]</tool_call>', "form"),
        ('<tool_call>{"arguments": {"a": 1}}</tool_call>', "form"),
        ('<tool_call>{"name": "add", "arguments": {"a": 1}}', "unclosed"),
        ('<tool_call>{"name": "look", "arguments": {}}</tool_call>', "name"),
        ('<tool_call>{"name": "add", "arguments": [1]}</tool_call>', "arguments"),
        ('<tool_call>{"name": "add", "arguments": {}}</tool_call>', "arguments"),
        ('<tool_call>{"name": "add", "arguments": {"a": 1.5}}</tool_call>', "arguments"),
        ('<tool_call>{"name": "add", "arguments": {"a": true}}</tool_call>', "arguments"),
        ('<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>', "arguments"),
        ('<tool_call>{"name": "add", "arguments": {"a": 1, "d": 2}}</tool_call>', "arguments"),
    ],
)
def test_a_malformed_call_has_a_fault_of_one_kind(written: str, fault: str) -> None:
    (call,) = judged(parse_hermes(written, {}), {"add": ADD}).calls
    assert call.fault == fault
    assert bool(call.problem) == (fault in ("json", "form", "unclosed") or '"arguments": [' in written)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"properties": [], "required": "a"},
        {"type": "object", "additionalProperties": True, "properties": {"a": {}}, "required": [{}, 1]},
        {"properties": {"a": {"$ref": "#/x"}, "b": True, "c": {"type": "date"}, "d": {"$ref": "#/properties/d"}}},
    ],
)
def test_a_schema_that_says_nothing_fits_any_arguments(schema: dict[str, Any]) -> None:
    call = CalledTool(name="add", arguments={"a": 1, "b": "x", "c": [], "d": {}})
    assert not judged(ParsedText("", [call]), {"add": schema}).calls[0].fault
