"""JSON that the policy wrote: only values that can be sent on, and one sentence for the rest."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from asyncrl.rollout.episodes.tool_calls.found import Call, UnreadableCall

DECODER = json.JSONDecoder()
UNREADABLE = (msgspec.MsgspecError, RecursionError, OverflowError, UnicodeError)
"""Errors of JSON that is malformed, too deep, or has numbers or characters that no message can carry."""


def read_value(text: str) -> Any:
    """A JSON value. Raises one of `UNREADABLE`."""
    value = msgspec.json.decode(text)
    msgspec.msgpack.encode(value)  # Integers of more than 64 bits can be read but not sent.
    return value


def end_of_json(text: str, start: int) -> int:
    """End of the JSON value that begins at ``start``, but for white space; -1 if none does."""
    while start < len(text) and text[start].isspace():
        start += 1
    try:
        return DECODER.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return -1


def read_object(text: str) -> dict[str, Any]:
    """A JSON object. Raises `UnreadableCall`."""
    try:
        return as_object(read_value(text))
    except UNREADABLE as error:
        raise UnreadableCall(f"is not valid JSON: {error}") from error


def as_object(value: Any) -> dict[str, Any]:
    """The value, if it is a JSON object that can be sent. Raises `UnreadableCall`."""
    if not isinstance(value, dict):
        raise UnreadableCall(f"is {_kind(value)}, expected a JSON object")
    try:
        msgspec.msgpack.encode(value)
    except (*UNREADABLE, TypeError) as error:
        raise UnreadableCall(f"cannot be sent on: {error}") from error
    return value


def named_call(value: dict[str, Any], arguments_key: str) -> Call:
    """The call of an object with ``name`` and arguments, which may be missing. Raises `UnreadableCall`."""
    name, arguments = value.get("name"), value.get(arguments_key, {})
    if not isinstance(name, str) or not name:
        raise UnreadableCall('has no "name"')
    if isinstance(arguments, str):
        arguments = read_object(arguments)
    if not isinstance(arguments, dict):
        raise UnreadableCall(f'of {name} has {_kind(arguments)} as "{arguments_key}", expected a JSON object')
    return name, arguments


def typed(text: str, schema: Mapping[str, Any] | None) -> Any:
    """
    Value of an argument that is written without quotes.

    A parameter whose schema allows a string is one. Any other is read as JSON, and is the text if it is none.
    """
    kinds = schema.get("type") if schema else None
    if kinds == "string" or (isinstance(kinds, list) and "string" in kinds):
        return text
    if text.strip() in PYTHON_WORDS:
        return PYTHON_WORDS[text.strip()]
    try:
        value = read_value(text)
    except UNREADABLE:
        return text
    return text if isinstance(value, str) else value


PYTHON_WORDS = {"True": True, "False": False, "None": None}
"""Spellings of Python, in which chat templates render values that are not strings."""


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
