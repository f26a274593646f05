"""Schemas of tools from signatures and docstrings."""

from typing import Any, Literal, Optional

import pytest

from asyncrl.episodes.json_schema import problem_of
from asyncrl.episodes.worker.schema import schema_of
from asyncrl.errors import ConfigError


def look(
    name: str,
    times: int = 1,
    *,
    weight: float | None = None,
    how: Literal["near", "far"] = "near",
    places: list[str] = [],  # noqa: B006
    more: Optional[dict[str, int]] = None,  # noqa: UP045
) -> str:
    """
    Look into a box,
    or into several.

    Args:
        name: Letter of the box,
            such as a.
        times (int): How often.

    Returns:
        name: the content.
    """
    return name * times


SCHEMA = schema_of(look, "environment.tools")


def test_a_schema_has_types_and_descriptions() -> None:
    assert SCHEMA == {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look into a box, or into several.",
            "parameters": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "description": "Letter of the box, such as a."},
                    "times": {"type": "integer", "description": "How often."},
                    "weight": {"anyOf": [{"type": "number"}, {"type": "null"}]},
                    "how": {"enum": ["near", "far"]},
                    "places": {"type": "array", "items": {"type": "string"}},
                    "more": {"anyOf": [{"type": "object"}, {"type": "null"}]},
                },
                "required": ["name"],
            },
        },
    }


def test_the_first_argument_of_a_method_is_not_the_policys() -> None:
    class Till:
        def add(self, amount: int) -> int:
            return amount

    assert list(schema_of(Till.add, "x")["function"]["parameters"]["properties"]) == ["amount"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"name": "a", "times": 2, "weight": 3, "how": "far", "places": ["x"], "more": None}, ""),
        ({}, "argument 'name' is missing"),
        ({"name": "a", "color": 1}, "there is no argument 'color', expected name, times"),
        ({"name": 5}, "argument 'name' is 5, expected a string"),
        ({"name": "a", "times": True}, "argument 'times' is True, expected an integer"),
        ({"name": "a", "weight": "1"}, "expected a number or null"),
        ({"name": "a", "how": "up"}, "expected one of ['near', 'far']"),
        ({"name": "a", "places": [1]}, """expected what fits {"type": "array", "items": {"type": "string"}}"""),
    ],
)
def test_arguments_are_checked_before_the_call(arguments: dict[str, Any], problem: str) -> None:
    found = problem_of(arguments, SCHEMA["function"]["parameters"])
    assert problem in found
    assert bool(problem) == bool(found)


def untyped(name) -> str:
    return str(name)


def open_ended(*names: str) -> None: ...


def exotic(name: set[str]) -> None: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (untyped, "argument 'name' of tool 'untyped' has no type"),
        (open_ended, r"tool 'open_ended' takes \*names"),
        (exotic, r"has the type set\[str\], expected str, int"),
    ],
)
def test_a_function_that_cannot_be_described_is_refused(function: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"environment.tools: .*{message}"):
        schema_of(function, "environment.tools")
