from datetime import date

import pytest
from msgspec import Struct

from asyncrl.errors import ConfigError
from asyncrl.keys.strict_toml import convert, parse, quoted

DIGITS = "0f" * 32


class Thing(Struct, frozen=True):
    name: str
    private: bytes
    roles: tuple[str, ...] = ()
    added: date = date(2026, 1, 1)
    other: bytes = b""


def read(text: str) -> Thing:
    return convert(parse(text), Thing)


def test_digits_become_bytes_and_dates_dates() -> None:
    found = read(f'name = "a"\nprivate = "{DIGITS}"\nroles = ["x", "y"]\nadded = 2026-11-22\nother = ""')
    assert found == Thing("a", bytes.fromhex(DIGITS), ("x", "y"), date(2026, 11, 22), b"")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("privat = 1", "unknown key 'privat': did you mean 'private'?"),
        ("zzz = 1", "unknown key 'zzz': expected one of: name, private, roles, added, other"),
        ('name = "a"', "missing key 'private'"),
        (f'name = 1\nprivate = "{DIGITS}"', "name: expected `str`, got `int`"),
        ('name = "a"\nprivate = 5', "private: expected `bytes`, got `int`"),
        (f'name = "a"\nprivate = "{DIGITS}0"', "private: expected 64 hexadecimal digits, got 65 characters"),
        (f'name = "a"\nprivate = "{DIGITS}"\nroles = "x"', "roles: expected `array`, got `str`"),
        (f'name = "a"\nprivate = "{DIGITS}"\nroles = ["x", 1]', "roles[1]: expected `str`, got `int`"),
    ],
)
def test_an_error_names_the_key_and_what_is_wrong(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(text)
    assert str(raised.value) == error
    assert DIGITS not in repr(raised.value)


@pytest.mark.parametrize(
    "text", ["name", "name = 1\nname = 2", "x = " + "[" * 5000, "x = " + "1" * 5000, "x = 2026-13-01", "\x00"]
)
def test_text_that_is_not_toml_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not TOML: "):
        parse(text)


def test_strings_are_written_as_an_array() -> None:
    assert quoted([]) == "[]"
    assert parse(f"x = {quoted(['a', 'b-c'])}") == {"x": ["a", "b-c"]}
