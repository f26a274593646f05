"""
Description of a tool for the policy, from the signature and the docstring of a typed function.

    def look(name: str, times: int = 1) -> str:          {"type": "function", "function": {
        '''Look into a box.                                "name": "look", "description": "Look into a box.",
                                                           "parameters": {"type": "object", "properties": {
        Args:                                                "name": {"type": "string", "description": "Its letter."},
            name: Its letter.                                "times": {"type": "integer"}}, "required": ["name"]}}}
        '''
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable
from typing import Any, Union

from asyncrl.errors import ConfigError

SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
UNIONS = (Union, getattr(types, "UnionType", Union))
"""``Optional[int]``, and ``int | None`` of Python 3.10."""


def schema_of(function: Callable[..., Any], setting: str) -> dict[str, Any]:
    """Describe a function in OpenAI's form; raises `ConfigError`, which begins with ``setting``."""
    name = getattr(function, "__name__", type(function).__name__)
    try:
        parameters = list(inspect.signature(function).parameters.values())
        hints = typing.get_type_hints(function)
    except (TypeError, ValueError, NameError) as error:
        raise ConfigError(f"{setting}: the types of tool {name!r} cannot be read: {error}") from error
    if parameters and parameters[0].name == "self" and not inspect.ismethod(function):
        del parameters[0]
    about, arguments = _described(inspect.getdoc(function) or "")
    properties, required = {}, []
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"{setting}: tool {name!r} takes {parameter}, expected arguments with names")
        if parameter.name not in hints:
            raise ConfigError(f"{setting}: argument {parameter.name!r} of tool {name!r} has no type")
        described = {"description": arguments[parameter.name]} if parameter.name in arguments else {}
        where = f"{setting}: argument {parameter.name!r} of tool {name!r}"
        properties[parameter.name] = {**_type(hints[parameter.name], where), **described}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    return function_schema(name, about, {"type": "object", "properties": properties, "required": required})


def function_schema(name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _type(hint: Any, where: str) -> dict[str, Any]:
    if hint is Any:
        return {}
    if hint is type(None):
        return {"type": "null"}
    if hint in SIMPLE:
        return {"type": SIMPLE[hint]}
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return {"enum": list(inner)}
    if origin is list:
        return {"type": "array", "items": _type(inner[0], where)}
    if origin is dict:
        return {"type": "object"}
    if origin in UNIONS:
        return {"anyOf": [_type(one, where) for one in inner]}
    raise ConfigError(f"{where} has the type {hint}, expected str, int, float, bool, list, dict, Literal or Optional")


def _described(text: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into its text before the first section, and the descriptions of ``Args:``."""
    about, _, rest = text.partition("\nArgs:\n")
    about = re.split(r"\n(?:Returns|Raises|Yields|Example|Examples|Note):", about)[0]
    arguments: dict[str, str] = {}
    name, depth = "", None
    for line in rest.splitlines():
        indent = len(line) - len(line.lstrip())
        if line.strip() and not indent:
            break  # another section
        depth = indent if depth is None else depth
        if (found := re.match(r"\s*\*{0,2}(\w+)(?: *\([^)]*\))?:\s*(.*)", line)) and indent == depth:
            name = found[1]
            arguments[name] = found[2]
        elif name and line.strip():
            arguments[name] += f" {line.strip()}"
    return " ".join(about.split()), arguments
