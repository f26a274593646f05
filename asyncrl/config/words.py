"""
Types, values and texts of settings in words, for the reference and for messages.

    Annotated[int, Meta(ge=1)] | None   ─▶ integer ≥ 1 or unset
    {"a": [1.5]}                        ─▶ { a = [1.5] }
"""

from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from asyncrl.files.toml_text import toml_value

WORDS = {int: "integer", str: "string", bool: "true or false", float: "number", type(None): "unset", Any: "any value"}
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
LARGE = 2**53
"""From here on, a bound is written as a power of two."""


def type_in_words(kind: Any) -> str:
    """A type annotation, with its bounds."""
    args = get_args(kind)
    match get_origin(kind):
        case origin if origin is Annotated:
            inner, *extras = args
            limits = [
                f"{sign} {_number(limit)}"
                for extra in extras
                for name, sign in BOUNDS.items()
                if (limit := getattr(extra, name, None)) is not None
            ]
            return " ".join(filter(None, (type_in_words(inner), ", ".join(limits))))
        case origin if origin is Literal:
            return " or ".join(f'"{choice}"' for choice in args)
        case origin if origin in (Union, UnionType):
            return " or ".join(map(type_in_words, args))
        case origin if origin is list:
            return f"list of {type_in_words(args[0])}"
        case origin if origin is dict:
            return f"table of {type_in_words(args[1])}"
    return WORDS.get(kind) or "section"


def value_in_words(value: Any) -> str:
    """A value as it is written in TOML; what TOML does not have, None, is ``unset``."""
    if value is None:
        return "unset"
    return toml_value(msgspec.to_builtins(value)) if value != {} else "{}"


def _number(limit: float) -> str:
    if limit < LARGE:
        return f"{limit:g}"
    power = int(limit).bit_length()
    return f"2^{power} - 1" if limit == 2**power - 1 else str(limit)
