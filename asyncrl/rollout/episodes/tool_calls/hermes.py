"""Hermes, Qwen2.5 and Qwen3: ``<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>``."""

from asyncrl.rollout.episodes.tool_calls.found import Call, Found, Schemas, between
from asyncrl.rollout.episodes.tool_calls.json_values import end_of_json, named_call, read_object


def parse(text: str, schemas: Schemas) -> Found:
    return between(text, "<tool_call>", "</tool_call>", _read, end_of_value=end_of_json)


def _read(block: str) -> Call:
    return named_call(read_object(block), "arguments")
