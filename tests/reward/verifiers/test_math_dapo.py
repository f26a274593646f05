"""DAPO's mathematics reward: equality of normalized text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import VerifierError
from asyncrl.reward.verifier import Verdict, VerifierInput, verdict_of
from asyncrl.reward.verifiers.math_dapo import TAIL_CHARS, MathDapo, normalized


def judged(completion: str, answer: str, *, boxed: bool = False) -> Verdict:
    return verdict_of(MathDapo(boxed=boxed)(VerifierInput(completion=completion, answer=answer)))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (" $1,234$. ", "1234"),
        ("1{,}234", "1234"),
        ("$\\boxed{\\frac{1}{2}}$", "\\frac{1}{2}"),
        ("\\boxed{x = 5}", "5"),
        ("\\mathbf{\\text{5}}", "5"),
        ("−5", "-5"),
        ("90\\degree", "90"),
        ("90°", "90"),
        ("x = 5", "5"),
        ("\\boxed{\\text{5}}", "5"),
        ("5 \\text{ miles}", "5"),
        ("12 square units", "12"),
        ("\\frac12", "\\frac{1}{2}"),
        ("\\dfrac{1}{2}", "\\frac{1}{2}"),
        ("\\sqrt3", "\\sqrt{3}"),
        ("90^\\circ", "90"),
        ("50\\%", "50"),
        ("\\left( 1, 2 \\right)", "(1,2)"),
        ("the 7", "7"),
    ],
)
def test_answers_are_normalized(written: str, expected: str) -> None:
    assert normalized(written) == expected


def test_right_is_one_and_wrong_is_minus_one() -> None:
    assert judged("Answer: 1,234", "1234") == Verdict(1.0, {"correct": 1.0}, "1234")
    assert judged("Answer: 1235", "1234") == Verdict(-1.0, {"correct": 0.0}, "1235")
    assert judged("1234", "1234") == Verdict(-1.0, {"correct": 0.0}, "")
    assert judged("Answer: $\\boxed{\\frac{1}{2}}$", "\\frac12").reward == 1.0
    assert judged("Answer: 1{,}024", "1024").reward == 1.0


@pytest.mark.parametrize(
    ("completion", "otherwise", "boxed"),
    [
        ("so \\boxed{\\text{1,234}}", 1.0, 1.0),
        ("so \\fbox{1234} it is", 1.0, 1.0),
        ("\\boxed{1} no, \\boxed{1234}", 1.0, 1.0),
        ("Answer:\n\\boxed{1234}", 1.0, 1.0),
        ("Answer: 1234, not \\boxed{1}", -1.0, -1.0),
        ("Answer: 1234\nnot \\boxed{1}", 1.0, -1.0),
        ("Answer: 1\nnot \\boxed{1234}", -1.0, 1.0),
        ("Answer: 1234", 1.0, -1.0),
        ("so \\boxed{1234", -1.0, -1.0),
    ],
)
def test_a_box_counts_where_no_answer_is_marked_and_with_boxed_alone(
    completion: str, otherwise: float, boxed: float
) -> None:
    assert judged(completion, "1234").reward == otherwise
    assert judged(completion, "1234", boxed=True).reward == boxed


@pytest.mark.parametrize(
    ("given", "answer", "expected"),
    [
        ("5 apples", "5", 1.0),
        ("12。", "12", 1.0),
        ("１２", "12", 1.0),
        ("3 m", "3 km", -1.0),
        ("60^\\circ", "60\\%", -1.0),
        ("2012_5", "2012_6", -1.0),
        ("1=2=6", "6", -1.0),
        ("5=6", "6", -1.0),
        ("5 or 6", "6", -1.0),
        ("x = 6", "6", 1.0),
    ],
)
def test_units_and_bases_that_are_written_must_agree_and_guesses_are_no_answer(
    given: str, answer: str, expected: float
) -> None:
    assert judged(f"so \\boxed{{{given}}}", answer).reward == expected


def test_only_the_tail_is_searched() -> None:
    assert judged("Answer: 18\n" + "." * (TAIL_CHARS - 11), "18").reward == 1.0
    assert judged("Answer: 18\n" + "." * (TAIL_CHARS - 10), "18").reward == -1.0


@given(st.integers(-(10**12), 10**12), st.text())
def test_every_integer_is_its_own_answer_whatever_comes_before(number: int, before: str) -> None:
    assert judged(f"{before}\nAnswer: ${number:,}$", str(number)).reward == 1.0
    assert judged(f"{before}\nAnswer: {number + 1}", str(number)).reward == -1.0


def test_a_row_without_an_answer_is_an_error_and_not_a_minus_one() -> None:
    with pytest.raises(VerifierError, match="no answer"):
        judged("Answer: 1", " ")
