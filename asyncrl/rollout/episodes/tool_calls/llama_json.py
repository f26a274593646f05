"""
Llama 3.1 and 3.2: the whole turn is ``{"name": "add", "parameters": {"a": 1}}``, several are separated by ``;``.

``<|python_tag|>`` may precede them. Without it, a turn that does not begin with an object with a name is content.
"""

import json
import re
from collections.abc import Iterator
from functools import partial

from asyncrl.environment.interface import CalledTool
from asyncrl.rollout.episodes.tool_calls.found import MAX_CALLS, TOO_MANY, Call, Found, Schemas, problematic, to_call
from asyncrl.rollout.episodes.tool_calls.json_values import named_call, read_object

PYTHON_TAG = "<|python_tag|>"
SEPARATORS = "; \t\r\n"
NAMED_OBJECT = re.compile(r'\s*\{\s*"name"\s*:')


def parse(text: str, schemas: Schemas) -> Found:
    before, tag, after = text.partition(PYTHON_TAG)
    if not tag and not NAMED_OBJECT.match(text):
        return Found(text)
    calls: list[CalledTool] = []
    for value in _values(after if tag else text):
        calls.append(problematic(TOO_MANY) if len(calls) == MAX_CALLS else to_call(partial(_read, value)))
        if calls[-1].problem:
            break
    return Found(before.strip() if tag else "", calls)


def _read(text: str) -> Call:
    value = read_object(text)
    return named_call(value, "parameters" if "parameters" in value else "arguments")


def _values(text: str) -> Iterator[str]:
    """JSON values, one after another; the whole rest if it begins with none."""
    decoder = json.JSONDecoder()
    while text := text.strip(SEPARATORS):
        try:
            end = decoder.raw_decode(text)[1]
        except (ValueError, RecursionError):
            end = len(text)
        yield text[:end]
        text = text[end:]
