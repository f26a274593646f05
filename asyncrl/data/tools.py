"""
Tools that a row shows to the policy.

    [{"type": "function", "function": {"name": "add", "parameters": {...}}}]     a list in OpenAI's form
    [{"name": "add", "parameters": {...}}]                                      the same without its frame
    '[{"type": "function", ...}]'                                               JSON text of either, as it is written
"""

from functools import lru_cache
from typing import Any

import msgspec

from asyncrl.errors import DataError
from asyncrl.files.foreign import parse_json


def read_tools(value: Any, column: str) -> str:
    """`Prompt.tools` of a row that has ``value`` in this column; raises `DataError` if it is no list of tools."""
    try:
        listed = parse_json(value.strip() or "[]", Any, "it") if isinstance(value, str) else _of_columns(value)
    except DataError as error:
        raise _no_tools(value, column, f"cannot be read: {error}") from error
    if not listed:
        return ""
    if not isinstance(listed, list):
        raise _no_tools(value, column, "is no list")
    tools = [_in_frame(tool) for tool in listed]
    names = [tool["function"].get("name") if isinstance(tool["function"], dict) else None for tool in tools]
    if wrong := [place for place, name in enumerate(names) if not isinstance(name, str) or not name]:
        raise _no_tools(listed[wrong[0]], f"{column}[{wrong[0]}]", "has no name")
    if not all(isinstance(tool["function"].get("parameters", {}), dict) for tool in tools):
        raise _no_tools(value, column, "has parameters that are no object")
    if twice := [name for name in names if names.count(name) > 1]:
        raise _no_tools(value, column, f"has two tools {twice[0]!r}")
    return msgspec.json.encode(tools).decode()


@lru_cache(1024)
def tool_names(tools: str) -> tuple[str, ...]:
    """Names of the tools in `Prompt.tools`."""
    return tuple(tool["function"]["name"] for tool in msgspec.json.decode(tools)) if tools else ()


def _in_frame(tool: Any) -> dict[str, Any]:
    return tool if isinstance(tool, dict) and "function" in tool else {"type": "function", "function": tool}


def _of_columns(value: Any) -> Any:
    """
    Leave out keys that are null, and put the others in one order.

    Parquet gives all objects of a column the same keys in the same order, those of other rows too.
    """
    if isinstance(value, dict):
        ordered = sorted(value, key=lambda key: (_ORDER.get(key, len(_ORDER)), key))
        return {key: _of_columns(value[key]) for key in ordered if value[key] is not None}
    return [_of_columns(item) for item in value] if isinstance(value, list) else value


_ORDER = {
    key: place for place, key in enumerate(("type", "function", "name", "description", "parameters", "properties"))
}
"""Keys that come first in what the policy reads; the others follow by the alphabet."""


def _no_tools(value: Any, column: str, problem: str) -> DataError:
    return DataError(
        f"{column!r} {problem}, expected a list of {{type, function: {{name, description, parameters}}}}, or its JSON "
        f'text, got {value!r:.40}; set data.tools_column = "" if the rows have no tools'
    )
