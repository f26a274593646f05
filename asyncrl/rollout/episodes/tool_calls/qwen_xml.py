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

OPENING = "<tool_call>"
FUNCTION, PARAMETER = "<function=", "<parameter="
END_OF_FUNCTION, END_OF_PARAMETER = "</function>", "</parameter>"


def parse(text: str, schemas: Schemas) -> Found:
    return between(text, OPENING, "</tool_call>", lambda block: _read(block, schemas))


def _read(block: str, schemas: Schemas) -> Call:
    start, end = block.find(FUNCTION), block.rfind(END_OF_FUNCTION)
    if start < 0 or end < start:
        raise UnreadableCall(f"has no {FUNCTION}name> with {END_OF_FUNCTION}")
    if block.count(FUNCTION) > 1 or OPENING in block:
        raise UnreadableCall(f"has another {FUNCTION if block.count(FUNCTION) > 1 else OPENING} inside")
    name, rest = _named(block[start + len(FUNCTION) : end], FUNCTION)
    arguments: dict[str, Any] = {}
    known = schemas.get(name, {})
    while rest.strip():
        before, opened, rest = rest.partition(PARAMETER)
        if before.strip() or not opened:
            raise UnreadableCall(f"of {name} has {before.strip()[:80]!r} between its parameters")
        key, rest = _named(rest, PARAMETER)
        value, closed, rest = rest.partition(END_OF_PARAMETER)
        if not closed or PARAMETER in value:
            raise UnreadableCall(f"of {name} has a parameter {key} that is not closed by {END_OF_PARAMETER}")
        if key in arguments:
            raise UnreadableCall(f"of {name} has the parameter {key} twice")
        arguments[key] = typed(value.removeprefix("\n").removesuffix("\n"), known.get(key))
    return name, arguments


def _named(text: str, tag: str) -> tuple[str, str]:
    """Name in a tag that was opened before ``text``, and the text after the tag."""
    name, closed, rest = text.partition(">")
    if not closed or not name.strip() or "<" in name:
        raise UnreadableCall(f"has a tag {tag} without a name and >")
    return name.strip(), rest
