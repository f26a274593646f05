"""
Values that a JSON schema allows, and what is wrong with the arguments of a call. The standard library is enough.

    {"type": "integer"}    1 ─▶ True    "1" ─▶ False       {"minimum": 5}    1 ─▶ None: a keyword that is not understood

Tools come from anywhere, so a schema may be anything: what is not understood forbids nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Optional
from urllib.parse import unquote

Answer = Optional[bool]
"""True: allowed. False: forbidden. None: it depends on what is not understood."""

# ── answers ────────────────────────────────────────────────────────────────────────────────────


def _all(answers: Iterable[Answer]) -> Answer:
    found = list(answers)
    return False if False in found else None if None in found else True


def _any(answers: Iterable[Answer]) -> Answer:
    found = list(answers)
    return True if True in found else None if None in found else False


def _one(answers: Iterable[Answer]) -> Answer:
    found = list(answers)
    return False if found.count(True) > 1 else None if None in found else True in found


# ── schema ─────────────────────────────────────────────────────────────────────────────────────
# Keywords of draft 2020-12, and ``nullable`` of OpenAPI. References lead to places of the same schema.

ANNOTATIONS = frozenset((
    "$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "example", "examples",
    "deprecated", "readOnly", "writeOnly", "format", "nullable",
))  # fmt: skip
"""Keywords that forbid no value."""
TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and value == value // 1,
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}


class JsonSchema:
    """
    A JSON schema, asked about values.

    Args:
        root: The whole schema, to which references belong; any JSON value.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: dict[tuple[int, int], Answer] = {}
        """Answers by schema and value: each pair is compared once, so that references may lead to themselves."""
        self._part: Any = None
        """Object of which only some members are known."""

    def allows(self, value: Any) -> Answer:
        """Answer whether the schema allows a value."""
        self._known.clear()
        try:
            return self._allows(self._root, value)
        except RecursionError:
            return None

    def allows_member(self, name: str, value: Any) -> Answer:
        """Answer whether it allows an object to have this member, whatever the others are."""
        self._part = {name: value}
        try:
            return self.allows(self._part)
        finally:
            self._part = None

    def in_place(self, schema: Any, *, choices: bool = False) -> Iterator[Any]:
        """The schema and those that all its values fit as well; with ``choices``, also those that some fit."""
        seen, left = set[int](), [schema]
        while left:
            schema = left.pop(0)
            if id(schema) in seen:
                continue
            seen.add(id(schema))
            yield schema
            if isinstance(schema, Mapping):
                left += [self.target(schema["$ref"])] if "$ref" in schema else []
                for keyword in ("allOf", "anyOf", "oneOf") if choices else ("allOf",):
                    left += found if isinstance(found := schema.get(keyword), list) else []

    def target(self, reference: Any) -> Any:
        """The schema that a local reference names; None, which is no schema, if it leads nowhere."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        found: Any = self._root
        first, *steps = unquote(reference[1:]).split("/")
        for step in [first] * bool(first) + steps:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping):
                found = found.get(name)
            else:
                is_place = isinstance(found, list) and name.isascii() and name.isdigit() and int(name[:9]) < len(found)
                found = found[int(name[:9])] if is_place else None
        return found

    def _allows(self, schema: Any, value: Any) -> Answer:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            return None
        pair = id(schema), id(value)
        if pair not in self._known:
            self._known[pair] = None  # for a reference that leads here again
            is_null = value is None and schema.get("nullable") is True
            self._known[pair] = is_null or _all(self._says(schema, value))
        return self._known[pair]

    def _says(self, schema: Mapping[str, Any], value: Any) -> Iterator[Answer]:
        """Answer of each keyword."""
        is_part = value is self._part and value is not None
        for keyword, wanted in schema.items():
            if keyword in ANNOTATIONS or (is_part and keyword in ("required", "const", "enum")):
                continue
            if keyword == "$ref":
                yield self._allows(self.target(wanted), value)
            elif keyword in GROUPS and isinstance(wanted, list) and wanted:
                group = _any if is_part and keyword == "oneOf" else GROUPS[keyword]
                yield group(self._allows(one, value) for one in wanted)
            elif keyword == "type":
                yield _any(_is(kind, value) for kind in (wanted if isinstance(wanted, list) else [wanted]))
            elif keyword == "const":
                yield same(wanted, value)
            elif keyword == "enum" and isinstance(wanted, list):
                yield any(same(one, value) for one in wanted)
            elif keyword in ("properties", "required", "additionalProperties"):
                yield self._says_of_object(keyword, wanted, schema, value) if isinstance(value, dict) else True
            elif keyword in ("items", "prefixItems"):
                yield self._says_of_list(keyword, wanted, schema, value) if isinstance(value, list) else True
            else:
                yield None

    def _says_of_object(self, keyword: str, wanted: Any, schema: Mapping[str, Any], value: dict[str, Any]) -> Answer:
        if keyword == "required":
            return all(name in value for name in wanted) if _is_texts(wanted) else None
        if keyword == "properties":
            if not isinstance(wanted, Mapping):
                return None
            return _all(self._allows(one, value[name]) for name, one in wanted.items() if name in value)
        others = value.keys() - _properties(schema).keys()
        if others and "patternProperties" in schema:
            return None
        return _all(self._allows(wanted, value[name]) for name in others)

    def _says_of_list(self, keyword: str, wanted: Any, schema: Mapping[str, Any], value: list[Any]) -> Answer:
        if isinstance(wanted, list):  # of prefixItems, and of items before draft 2020-12
            return _all(self._allows(one, item) for one, item in zip(wanted, value))
        if keyword == "prefixItems":
            return None
        first = schema.get("prefixItems")
        return _all(self._allows(wanted, item) for item in value[len(first) if isinstance(first, list) else 0 :])


GROUPS = {"allOf": _all, "anyOf": _any, "oneOf": _one}


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    return found if isinstance(found := schema.get("properties"), Mapping) else {}


def _is(kind: Any, value: Any) -> Answer:
    return TYPES[kind](value) if isinstance(kind, str) and kind in TYPES else None


def _is_texts(names: Any) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def same(one: Any, other: Any) -> bool:
    """True if two JSON values are equal: 1 is 1.0, and not true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


# ── arguments ──────────────────────────────────────────────────────────────────────────────────

SPEAKS_OF_NAMES = ("patternProperties", "if", "then", "else", "not", "dependentSchemas", "unevaluatedProperties")
"""Keywords not understood that may allow further arguments."""


def problem_of(arguments: dict[str, Any], parameters: Any) -> str:
    """
    Say why arguments do not fit the schema of a tool's ``parameters``; empty if they fit.

    An argument that the schema does not name is a problem, unless ``additionalProperties`` or a part that is not
    understood may allow it: the call was meant otherwise.
    """
    schema = JsonSchema(parameters)
    fitting = [one for one in schema.in_place(parameters) if isinstance(one, Mapping)]
    for one in fitting:
        for name in one.get("required", ()) if _is_texts(one.get("required")) else ():
            if name not in arguments:
                return f"argument {name!r} is missing"
    names = _names(schema, parameters)
    for name, value in arguments.items():
        if names is not None and name not in names:
            return f"there is no argument {name!r}, expected {', '.join(names) or 'none'}"
        if schema.allows_member(name, value) is False:
            wanted = [known[name] for one in fitting if name in (known := _properties(one))]
            expected = " and ".join(_words(schema, one) for one in wanted) or "another value"
            return f"argument {name!r} is {value!r:.80}, expected {expected}"
    return "the arguments do not fit the schema together" if schema.allows(arguments) is False else ""


def _names(schema: JsonSchema, parameters: Any) -> list[str] | None:
    """Names of all arguments; None if there may be others."""
    names: dict[str, None] = {}
    has_names = False
    for one in schema.in_place(parameters, choices=True):
        if isinstance(one, bool):
            continue
        if not isinstance(one, Mapping) or any(keyword in one for keyword in SPEAKS_OF_NAMES):
            return None
        properties = one.get("properties", {})
        if not isinstance(properties, Mapping) or one.get("additionalProperties", False) is not False:
            return None
        has_names |= "properties" in one or "additionalProperties" in one
        names.update(dict.fromkeys(properties))
    return list(names) if has_names else None


def _words(schema: JsonSchema, wanted: Any) -> str:
    """The values of a schema in words, if these are short, or as JSON."""
    if isinstance(wanted, Mapping):
        said = {key: value for key, value in wanted.items() if key not in ANNOTATIONS}
        if said.keys() == {"$ref"} and isinstance(target := schema.target(wanted["$ref"]), Mapping):
            return _words(JsonSchema({}), target)
        if said.keys() == {"type"}:
            kinds = said["type"] if isinstance(said["type"], list) else [said["type"]]
            return " or ".join(f"{_article(kind)}{kind}" for kind in map(str, kinds))
        if said.keys() == {"enum"}:
            return f"one of {said['enum']}"
        if said.keys() == {"anyOf"} and isinstance(said["anyOf"], list):
            return " or ".join(_words(schema, one) for one in said["anyOf"])
        wanted = said
    return f"what fits {json.dumps(wanted, ensure_ascii=False):.300}"


def _article(kind: str) -> str:
    return "" if kind == "null" else "an " if kind[:1] in ("a", "i", "o") else "a "
