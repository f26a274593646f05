"""
Llama 3.1 and 3.2: the whole turn is ``{"name": "add", "parameters": {"a": 1}}``, several are separated by ``;``.

``<|python_tag|>`` may precede them. Without it, a turn that does not begin with an object with a name is content.
"""

import re
from collections.abc import Iterator
from functools import partial

from asyncrl.environment.interface import CalledTool
from asyncrl.rollout.episodes.tool_calls.found import MAX_CALLS, TOO_MANY, Call, Found, Schemas, problematic, to_call
from asyncrl.rollout.episodes.tool_calls.json_values import end_of_json, named_call, read_object

PYTHON_TAG = "<|python_tag|>"
SEPARATORS = "; \t\r\n"
ENDS = re.compile(r"\s*(?:[;\n]|$|\{)")
NEXT_CALL = re.compile(r'[;\n]\s*\{\s*"name"\s*:')
"""Beginning of a call behind another one."""
NAMED_OBJECT = re.compile(r'\s*\{\s*"name"\s*:')


def parse(text: str, schemas: Schemas) -> Found:
    before, tag, after = text.partition(PYTHON_TAG)
    if not tag and not NAMED_OBJECT.match(text):
        return Found(text)
    content, calls = [before.strip() if tag else ""], list[CalledTool]()
    for value in _values(after if tag else text):
        if len(calls) == MAX_CALLS:
            calls.append(problematic(TOO_MANY))
            break
        calls.append(to_call(partial(_read, value)))
        if calls[-1].problem:
            content.append(value.strip())
    return Found("\n".join(filter(None, content)), calls)


def _read(text: str) -> Call:
    value = read_object(text)
    return named_call(value, "parameters" if "parameters" in value else "arguments")


def _values(text: str) -> Iterator[str]:
    """
    JSON values, one after another; what is none up to where the next call begins.

    Inside a string of JSON its quotation marks would have backslashes, so that is no text of a broken call.
    """
    start = 0
    while start < len(text):
        if text[start] in SEPARATORS:
            start += 1
            continue
        end = end_of_json(text, start)
        if end < 0 or not ENDS.match(text, end):
            following = NEXT_CALL.search(text, start)
            end = following.start() if following else len(text)
        yield text[start:end]
        start = end
