"""No text from elsewhere is obeyed by a terminal, deceives a reader, or fills a screen."""

from unicodedata import category

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asyncrl.foreign_text import MAX_CHARS, acting, escaped, shown, shown_lines

ANY_TEXT = st.text(st.characters(), max_size=3000)  # lone surrogates too
OBEYED = {"Cc", "Cf", "Cs", "Zl", "Zp"}


@given(text=ANY_TEXT)
@example(text="\x1b]0;OWNED\x07\x1b[2J\x9b31m\u202e" * 1000)
@example(text="\U000e0001" * MAX_CHARS)
@example(text="a" * (MAX_CHARS + 1))
def test_no_text_keeps_what_is_obeyed_or_grows_beyond_its_bound(text: str) -> None:
    line = shown(text)
    assert not {category(letter) for letter in line} & OBEYED
    assert len(line) <= MAX_CHARS
    assert shown(line) == line
    line.encode()


@given(text=ANY_TEXT)
def test_lines_stay_lines_and_nothing_else_acts(text: str) -> None:
    lines = shown_lines(text).split("\n")
    assert len(lines) == text.count("\n") + 1
    assert not any({category(letter) for letter in line} & OBEYED for line in lines)
    assert shown_lines("\n".join(lines)) == "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("ValueError: no number in '17' (score.py:12)", "ValueError: no number in '17' (score.py:12)"),
        ("\x1b[2J\x07", "\\x1b[2J\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\u202egnp.exe\u2066\u200f\u061c", "\\u202egnp.exe\\u2066\\u200f\\u061c"),
        ("a\u2028b\u2029c\u200bd", "a\\u2028b\\u2029c\\u200bd"),
        ("\ud800", "\\ud800"),
        ("\U000e0041\u3164", "\\U000e0041\\u3164"),
        ("答案\u3000是 17 ❤", "答案\u3000是 17 ❤"),
        ("", ""),
    ],
)
def test_what_acts_is_an_escape_and_letters_stay(text: str, line: str) -> None:
    assert shown(text) == line
    assert escaped(text) == line


def test_a_long_text_says_how_much_of_it_is_left_out() -> None:
    assert shown("a" * 90_000, 100) == "a" * 60 + "… (89,940 more characters)"
    assert shown("\x1b" * 100, 100) == "\\x1b" * 15 + "… (85 more characters)"
    assert shown("a" * 100, 100) == "a" * 100


def test_a_view_of_lines_bounds_each_of_them() -> None:
    assert shown_lines("a\tb\r\n\x1b" + "c" * 200, 100) == "a       b\n\\x1b" + "c" * 56 + "… (144 more characters)"


def test_the_first_acting_character_is_named() -> None:
    assert acting("a\x1bb\x07") == "\x1b"
    assert acting("a b") == ""
