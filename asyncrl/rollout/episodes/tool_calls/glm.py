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

OPENING = "<tool_call>"
KEY, END_OF_KEY = "<arg_key>", "</arg_key>"
VALUE, END_OF_VALUE = "<arg_value>", "</arg_value>"


def parse(text: str, schemas: Schemas) -> Found:
    return between(text, OPENING, "</tool_call>", lambda block: _read(block, schemas))


def _read(block: str, schemas: Schemas) -> Call:
    before, *pairs = block.split(KEY)
    name = before.strip()
    if not name or "<" in name:
        raise UnreadableCall("has no name" if not name else f"has {name[:80]!r} as its name")
    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, _, rest = pair.partition(END_OF_KEY)
        between_tags, opened, rest = rest.partition(VALUE)
        value, closed, rest = rest.partition(END_OF_VALUE)
        if not (opened and closed) or between_tags.strip() or rest.strip() or OPENING in value or VALUE in value:
            raise UnreadableCall(f"of {name} has {KEY}{key.strip()} without {END_OF_KEY}{VALUE}...{END_OF_VALUE}")
        if key.strip() in arguments:
            raise UnreadableCall(f"of {name} has {KEY}{key.strip()} twice")
        arguments[key.strip()] = typed(value, schemas.get(name, {}).get(key.strip()))
    return name, arguments
