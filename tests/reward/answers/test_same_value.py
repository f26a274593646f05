"""Equality of answers in LaTeX."""

from pathlib import Path

import pytest

from asyncrl.errors import VerifierError

compare = pytest.importorskip("asyncrl.reward.answers.same_value", exc_type=ImportError).compare


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ("0.5", "\\frac{1}{2}"),
        ("\\dfrac12", "1/2"),
        ("x^2+2x+1", "(x+1)^2"),
        ("\\{2, 1\\}", "\\{1,2\\}"),
        ("2\\sqrt{2}", "\\sqrt{8}"),
        ("1,000", "1000"),
        ("1\\,000", "1000"),
        ("18.50", "18.5"),
        ("90°", "90^\\circ"),
        ("x = 3", "3"),
        ("5 \\text{ cm}", "5"),
        ("\\text{42}", "42"),
        ("\\mathbf{42}", "42"),
        ("\\mathbf{\\frac{1}{2}}", "0.5"),
        ("x = \\boldsymbol{-42}", "-42"),
        ("\\textbf{5 cm}", "5"),
        ("\\mathbf{5} \\text{ cm}^2", "5"),
        ("5\\mathrm{\\mu m}", "5"),
        ("90\\degree", "90"),
        ("90", "90^{\\degree}"),
        ("\\text{(A)}", "A"),
        ("$7$.", "7"),
        ("1024", "2^{10}"),
        ("9^{9^{9}}", "9^{9^{9}}"),
    ],
)
def test_different_ways_to_write_one_value(given: str, answer: str) -> None:
    assert compare(given, answer).is_same


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ("", "5"),
        ("4", "5"),
        ("-5", "5"),
        ("0.33", "1/3"),
        ("(1, 3)", "(1, 2)"),
        ("[0,1]", "[0,1)"),
        ("4 \\text{ or } 5", "5"),
        ("4, 5", "5"),
        ("\\text{4 or 5}", "5"),
        ("\\mathbf{4}5", "5"),
        ("2^\\mathbf{10}", "20"),
        ("\\text{saw}", "\\text{was}"),
        ("\\sin 90\\degree", "90"),
        ("y", "x"),
        ("5x", "5"),
        ("\\text{yes}", "\\text{no}"),
        ("\\frac{5}{", "5"),
        ("9^{9^{9}}", "5"),
        ("99999!", "5"),
        ("5" + " " * 400 + "+0" * 400, "5"),
    ],
)
def test_wrong_answers_are_not_equal(given: str, answer: str) -> None:
    assert not compare(given, answer).is_same


def test_a_row_without_an_answer_is_an_error_and_not_a_zero() -> None:
    with pytest.raises(VerifierError, match="no answer"):
        compare("5", " $$ ")


@pytest.mark.parametrize("form", ["{}", "\\text{{{}}}", "1 + {}", "x = {}"])
def test_text_that_looks_like_python_is_not_run(form: str, tmp_path: Path) -> None:
    compare(form.format(f"__import__('pathlib').Path('{tmp_path}/owned').touch()"), "5")

    assert not (tmp_path / "owned").exists()
