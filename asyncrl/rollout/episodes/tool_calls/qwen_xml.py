"""
Qwen3-Coder, Qwen3.5 and Nemotron 3: tags for the function and each parameter, values without quotes.

    <tool_call>
    <function=add>
    <parameter=a>
    1
    </parameter>
    </function>
    </tool_call>
"""

from typing import Any

from asyncrl.rollout.episodes.tool_calls.found import Call, Found, Schemas, UnreadableCall, between
from asyncrl.rollout.episodes.tool_calls.json_values import typed

FUNCTION, PARAMETER = "<function=", "<parameter="
END_OF_FUNCTION, END_OF_PARAMETER = "</function>", "</parameter>"


def parse(text: str, schemas: Schemas) -> Found:
    return between(text, "<tool_call>", "</tool_call>", lambda block: _read(block, schemas))


def _read(block: str, schemas: Schemas) -> Call:
    start, end = block.find(FUNCTION), block.rfind(END_OF_FUNCTION)
    if start < 0 or end < start:
        raise UnreadableCall(f"has no {FUNCTION}name> with {END_OF_FUNCTION}")
    name, rest = _named(block[start + len(FUNCTION) : end], FUNCTION)
    arguments: dict[str, Any] = {}
    known = schemas.get(name, {})
    while (start := rest.find(PARAMETER)) >= 0:
        key, rest = _named(rest[start + len(PARAMETER) :], PARAMETER)
        value, closed, rest = rest.partition(END_OF_PARAMETER)
        if not closed:
            raise UnreadableCall(f"of {name} has a parameter {key} that is not closed by {END_OF_PARAMETER}")
        arguments[key] = typed(value.removeprefix("\n").removesuffix("\n"), known.get(key))
    return name, arguments


def _named(text: str, tag: str) -> tuple[str, str]:
    """Name in a tag that was opened before ``text``, and the text after the tag."""
    name, closed, rest = text.partition(">")
    if not closed or not name.strip():
        raise UnreadableCall(f"has a tag {tag} without a name and >")
    return name.strip(), rest
