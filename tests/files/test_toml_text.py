"""Text of TOML values reads back as the values."""

import tomllib

import pytest

from asyncrl.files.toml_text import toml_key, toml_value


@pytest.mark.parametrize(
    "value", [True, 3, 1e-06, 'a\x7fb\n"c"', [1, 2], ["a", "b"], {"a b": {"c": [False]}}, [{"x": 1}, {"y": "z"}]]
)
def test_a_value_reads_back(value: object) -> None:
    assert tomllib.loads(f"value = {toml_value(value)}") == {"value": value}


@pytest.mark.parametrize("key", ["plain-key_1", "with space", "dot.ted", "é"])
def test_a_key_reads_back(key: str) -> None:
    assert tomllib.loads(f"{toml_key(key)} = 1") == {key: 1}
