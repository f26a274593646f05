"""
GLM-4.5 and later: the name, then a pair of tags for each argument, strings without quotes.

    <tool_call>add
    <arg_key>a</arg_key>
    <arg_value>1</arg_value>
    </tool_call>
"""

from typing import Any

from asyncrl.rollout.episodes.tool_calls.found import Call, Found, Schemas, UnreadableCall, between
from asyncrl.rollout.episodes.tool_calls.json_values import typed

KEY, END_OF_KEY = "<arg_key>", "</arg_key>"
VALUE, END_OF_VALUE = "<arg_value>", "</arg_value>"


def parse(text: str, schemas: Schemas) -> Found:
    return between(text, "<tool_call>", "</tool_call>", lambda block: _read(block, schemas))


def _read(block: str, schemas: Schemas) -> Call:
    before, *pairs = block.split(KEY)
    if not (name := before.strip()):
        raise UnreadableCall("has no name")
    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, _, rest = pair.partition(END_OF_KEY)
        _, opened, rest = rest.partition(VALUE)
        value, closed, _ = rest.partition(END_OF_VALUE)
        if not (opened and closed):
            raise UnreadableCall(f"of {name} has {KEY}{key.strip()} without {END_OF_KEY}{VALUE}...{END_OF_VALUE}")
        arguments[key.strip()] = typed(value, schemas.get(name, {}).get(key.strip()))
    return name, arguments
