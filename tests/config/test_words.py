"""Types and values are told in words, as one writes them in TOML."""

from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta

from asyncrl.config.meanings import type_in_words, value_in_words


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Annotated[int, Meta(ge=1)], "integer ≥ 1"),
        (Annotated[float, Meta(ge=0, lt=1)], "number ≥ 0, < 1"),
        (Annotated[int, Meta(ge=0, le=2**63 - 1)], "integer ≥ 0, ≤ 2^63 - 1"),
        (Annotated[Annotated[float, Meta(ge=0)] | Literal["auto"], Meta(extra={})], 'number ≥ 0 or "auto"'),
        (Literal["a", "b"] | None, '"a" or "b" or unset'),
        (str | list[str], "string or list of string"),
        (dict[str, bool | Any], "table of true or false or any value"),
    ],
)
def test_a_type_is_told_with_its_bounds(kind: Any, words: str) -> None:
    assert type_in_words(kind) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "unset"), (True, "true"), ("a", '"a"'), ([], "[]"), ({}, "{}"), ({"a": [1.5]}, "{ a = [1.5] }")],
)
def test_a_value_is_told_as_it_is_written(value: Any, words: str) -> None:
    assert value_in_words(value) == words
