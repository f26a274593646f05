"""One notation for answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.reward.answers.notation import plain


@pytest.mark.parametrize(
    ("written", "bare"),
    [
        ("\\text{42}", "42"),
        ("\\mathbf{42}", "42"),
        ("\\boldsymbol {42}", "42"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\mathbf{\\text{42}}", "42"),
        ("\\text{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\frac{\\mathrm{1}}{2}", "\\frac{1}{2}"),
        ("90°", "90^\\circ"),
        ("90\\degree", "90^\\circ"),
        ("90^\\degree", "90^\\circ"),
        ("90^{\\degree}", "90^\\circ"),
        ("1{,}024{,}000", "1,024,000"),
        ("−5", "-5"),
    ],
)
def test_how_a_number_is_typeset_does_not_matter(written: str, bare: str) -> None:
    assert plain(written) == bare
    assert plain(written, keep_words=True) == bare


@pytest.mark.parametrize(
    "text",
    [
        "2^\\mathbf{10}",
        "\\sqrt\\text{42}",
        "\\mathbb{R}",
        "\\textdollar{5}",
        "\\text{42",
        "42}",
        "1{,}5",
        "{42}",
        "\\degrees",
    ],
)
def test_what_would_change_the_value_or_is_not_closed_stays(text: str) -> None:
    assert plain(text) == plain(text, keep_words=True) == text


@pytest.mark.parametrize(
    "text", ["5 \\text{ cm}", "5\\mathrm{~cm}^2", "5\\mathrm{\\mu m}", "\\text{(A)}", "\\mathbf{x}"]
)
def test_words_stay_for_a_reader_that_knows_them(text: str) -> None:
    assert plain(text, keep_words=True) == text
    assert "{" not in plain(text)


@given(st.text(alphabet="\\\\texmahbf{}^_ 1,.°", max_size=40))
def test_any_text_is_read_and_loses_as_many_braces_on_each_side(text: str) -> None:
    bare = plain(text)
    assert text.count("{") - bare.count("{") == text.count("}") - bare.count("}")


@pytest.mark.parametrize(
    "unit", ["\\text{", "\\text{1", "{", "}", "\\text   {", "\\", "1{,}024", "^{\\degree", "\\text{~"]
)
def test_a_hostile_megabyte_is_read_in_one_pass(unit: str) -> None:
    plain(unit * (1_000_000 // len(unit)), keep_words=True)
