"""Conversion of TOML to Structs, for run files and plans alike."""

from pathlib import Path
from typing import Any, Literal

import pytest

from asyncrl.config.sections.section import Section
from asyncrl.config.toml import convert, put, read, split_override
from asyncrl.errors import ConfigError


class Part(Section, frozen=True, kw_only=True):
    size: int
    colour: Literal["red", "blue"] = "red"


class Whole(Section, frozen=True, kw_only=True):
    one: Part
    many: list[Part] = []
    free: dict[str, str] = {}


def test_sections_in_lists_are_as_strict_as_others() -> None:
    assert convert({"one": {"size": 1}, "many": [{"size": 2}]}, Whole) == Whole(one=Part(size=1), many=[Part(size=2)])


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        ({"one": {"size": 1}, "many": [{"sise": 2}]}, "unknown key 'many.sise': did you mean 'many.size'?"),
        ({"one": {"size": 1}, "many": [3]}, "many is a section, got 3"),
        ({"size": 1}, "unknown key 'size': did you mean 'one.size'?"),
        ({}, "missing section [one] with 'size'"),
        ({"one": {}}, "missing key 'one.size': it has no default"),
        ({"one": {"size": "x"}}, "one.size: expected a whole number such as 8, got 'x'"),
        ({"one": {"size": 1}, "many": [{"size": []}]}, "many[0].size: expected a whole number such as 8, got []"),
        ({"one": {"size": 1}, "free": {"key": "SECRET", "b": 1}}, "free[...]: expected `str`, got `int`"),
        ({"one": {"size": 1, "colour": "green"}}, "one.colour: expected one of 'red', 'blue', got 'green'"),
        (
            {"one": {"size": 1}, "many": [{"size": 1, "colour": "green"}]},
            "many[0].colour: expected one of 'red', 'blue', got 'green'",
        ),
    ],
    ids=str,
)
def test_raw_data_that_does_not_fit_is_refused_in_one_sentence(raw: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        convert(raw, Whole)
    assert str(error.value) == sentence


def test_a_value_is_put_under_its_full_key() -> None:
    raw: dict[str, Any] = {"one": {"size": 1}}
    put(raw, *split_override("c = blue", {"c": "one.colour"}), where="--set c = blue")
    assert raw == {"one": {"size": 1, "colour": "blue"}}
    with pytest.raises(ConfigError, match="--set: 'size' is a value, not a section"):
        put(raw, "one.size.x", 1, "--set")


def test_a_missing_file_is_named_by_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such plan: "):
        read(tmp_path / "x.toml", "plan")


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_bytes(b"\xef\xbb\xbf[run]\nsteps = 3\n")
    assert read(tmp_path / "run.toml", "config file") == {"run": {"steps": 3}}
    (tmp_path / "run.toml").write_bytes("[run]\nsteps = 3\n".encode("utf-16"))
    with pytest.raises(ConfigError, match=r"run\.toml is not TOML: .*; save it as UTF-8$"):
        read(tmp_path / "run.toml", "config file")
