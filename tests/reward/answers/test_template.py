"""Templates: text with gaps."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.reward.answers.template import fits, has_each_once


@pytest.mark.parametrize(
    ("template", "text", "expected"),
    [
        ("a...b", "ab", True),
        ("a...b", "a\nx\nb", True),
        ("a...b", "ba", False),
        ("aa...aa", "aaa", False),
        ("...b...", "abc", True),
        ("a", "a", True),
        ("a", "ab", False),
        ("x...aba...ab...y", "xababy", False),
        ("x...aba...ab...y", "xabaaby", True),
    ],
)
def test_pieces_are_found_in_order_and_do_not_overlap(template: str, text: str, expected: bool) -> None:
    assert fits(template, text) is expected


@given(st.lists(st.text(alphabet="ab", max_size=2), min_size=1, max_size=4), st.text(alphabet="ab", max_size=10))
def test_it_agrees_with_a_regular_expression(pieces: list[str], text: str) -> None:
    pattern = ".*".join(map(re.escape, pieces))

    assert fits("...".join(pieces), text) == bool(re.fullmatch(pattern, text, re.DOTALL))


def test_a_piece_that_occurs_too_often_is_noticed() -> None:
    assert has_each_once("a...b...a", "a--b--a")
    assert not has_each_once("a...b", "aab")
