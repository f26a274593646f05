"""Tokens: typesetting is one, and nothing that means something is dropped."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.reward.answers.notation import tokens


def texts(text: str) -> list[str]:
    return [token.text for token in tokens(text)]


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("\\dfrac{1}{2}", "\\frac{1}{2}"),
        ("\\text{42}", "42"),
        ("\\mathbf{\\text{42}}", "42"),
        ("\\left( 1,\\; 2 \\right)", "(1,2)"),
        ("1{,}024{,}000", "1024000"),
        ("1\\,024", "1 024"),
        ("90^{\\degree}", "90°"),
        ("−５", "-5"),
        ("2^\\mathbf{10}", "2^{10}"),
        ("10⁻³", "10^{-3}"),
        ("\\begin{pmatrix}1\\\\[4pt]2\\end{pmatrix}", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"),
    ],
)
def test_what_differs_in_typesetting_alone_is_the_same_tokens(written: str, plain: str) -> None:
    assert texts(written) == texts(plain)


@pytest.mark.parametrize("other", [("1 0", "10"), ("12 34", "1234"), ("1,2,345", "12345"), ("(1,234)", "(1234)")])
def test_numbers_side_by_side_are_not_joined(other: tuple[str, str]) -> None:
    assert texts(other[0]) != texts(other[1])


@given(
    st.text(alphabet="abkmxyzAB0123456789.,:;+-*/=<>()[]{}|! '%_^\\", max_size=40).filter(
        lambda text: not re.search(r"\\[a-zA-Z]", text)
    )
)
def test_every_letter_and_digit_of_a_text_is_in_a_token(text: str) -> None:
    assert list(filter(str.isalnum, "".join(texts(text)))) == list(filter(str.isalnum, text))
