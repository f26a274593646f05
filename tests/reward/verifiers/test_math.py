"""Mathematics: place and value of the answer."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import VerifierError
from asyncrl.reward.verifier import Verdict, VerifierInput, verdict_of
from asyncrl.reward.verifiers.math import TAIL_CHARS, Geo3k, Math, MathDapo


@pytest.mark.parametrize(
    ("form", "completion", "answer", "expected"),
    [
        ("any", "so \\boxed{0.5}", "\\frac{1}{2}", 1.0),
        ("any", "Answer: 0.5", "\\frac{1}{2}", 1.0),
        ("any", "Answer: $\\boxed{0.5}$", "\\frac{1}{2}", 1.0),
        ("any", "so \\fbox{0.5}", "\\frac{1}{2}", 1.0),
        ("any", "so $\\mathbf{\\boxed{0.5}}$", "\\frac{1}{2}", 1.0),
        ("any", "Answer: $\\textbf{0.5}$", "\\frac{1}{2}", 1.0),
        ("any", "\\fbox{7} but Answer: 0.5", "\\frac{1}{2}", 0.0),
        ("any", "\\boxed{7} but Answer: 0.5", "\\frac{1}{2}", 0.0),
        ("any", "0.5", "\\frac{1}{2}", 0.0),
        ("any", "\\boxed{0.5", "\\frac{1}{2}", 0.0),
        ("any", "\\boxed{0.5}", "It is \\boxed{\\frac{1}{2}}.", 1.0),
        ("boxed", "Answer: 0.5", "\\frac{1}{2}", 0.0),
        ("answer", "\\boxed{7}\nAnswer: 0.5", "\\frac{1}{2}", 1.0),
        ("answer", "\\boxed{0.5}", "\\frac{1}{2}", 0.0),
    ],
)
def test_scores_worked_by_hand(
    form: Literal["any", "boxed", "answer"], completion: str, answer: str, expected: float
) -> None:
    assert verdict_of(Math(form=form)(VerifierInput(completion=completion, answer=answer))).reward == expected


def test_writings_of_one_number_are_one_answer_in_a_vote() -> None:
    boxes = (".5", "\\frac12", "x = 0.50", "\\frac{1}{2}", "5/10")
    assert {verdict_of(Math()(VerifierInput(completion=f"\\boxed{{{box}}}", answer="8"))).answer for box in boxes} == {
        "1/2"
    }


def test_an_answer_that_takes_too_long_is_wrong_and_said_to_be_not_computed() -> None:
    for box in ("9^{9^{9^{9}}}", "\\sum_{i=1}^{10^{12}} i", "{" * 30 + "5" + "}" * 30, "99999!", "x" * 400):
        verdict = verdict_of(Math()(VerifierInput(completion=f"\\boxed{{{box}}}", answer="5")))
        assert (verdict.reward, verdict.metrics["not_computed"]) == (0.0, 1.0)
    assert verdict_of(Math()(VerifierInput(completion="\\boxed{4}", answer="5"))).metrics["not_computed"] == 0.0


def test_the_extracted_answer_is_reported() -> None:
    assert verdict_of(Math()(VerifierInput(completion="\\boxed{7}", answer="8"))).answer == "7"
    assert verdict_of(Math()(VerifierInput(completion="7", answer="8"))).answer == ""


# ── geo3k ─────────────────────────────────────────────────────────────────────────────────────────
# Geometry3K: nine tenths for the answer, one tenth for the format.


@pytest.mark.parametrize(
    ("completion", "score", "accuracy", "shape"),
    [
        ("<think>hm\n</think> so \\boxed{2\\sqrt{2}}", 1.0, 1.0, 1.0),
        ("so \\boxed{2\\sqrt{2}}", 0.9, 1.0, 0.0),
        ("<think>hm</think> \\boxed{3}", 0.1, 0.0, 1.0),
        (" <think>hm</think> \\boxed{3}", 0.0, 0.0, 0.0),
        ("<think>\\boxed{\\sqrt 8}</think>", 0.9, 1.0, 0.0),
        ("", 0.0, 0.0, 0.0),
    ],
)
def test_scores_of_geometry_worked_by_hand(completion: str, score: float, accuracy: float, shape: float) -> None:
    verdict = verdict_of(Geo3k()(VerifierInput(completion=completion, answer="\\sqrt{8}")))

    assert verdict.reward == pytest.approx(score)
    assert verdict.metrics == {"accuracy": accuracy, "format": shape, "correct": accuracy, "not_computed": 0.0}


# ── test math dapo ────────────────────────────────────────────────────────────────────────────
# DAPO's mathematics reward: plus or minus one, for the answer in the tail.


def judged(completion: str, answer: str, *, boxed: bool = False) -> Verdict:
    return verdict_of(MathDapo(boxed=boxed)(VerifierInput(completion=completion, answer=answer)))


def test_right_is_one_and_wrong_is_minus_one() -> None:
    assert judged("Answer: 1,234", "1234") == Verdict(1.0, {"correct": 1.0, "not_computed": 0.0}, "1234")
    assert judged("Answer: 1235", "1234") == Verdict(-1.0, {"correct": 0.0, "not_computed": 0.0}, "1235")
    assert judged("1234", "1234") == Verdict(-1.0, {"correct": 0.0, "not_computed": 0.0}, "")
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


def test_only_the_tail_is_searched_of_math_dapo() -> None:
    assert judged("Answer: 18\n" + "." * (TAIL_CHARS - 11), "18").reward == 1.0
    assert judged("Answer: 18\n" + "." * (TAIL_CHARS - 10), "18").reward == -1.0


@given(st.integers(-(10**12), 10**12), st.text())
def test_every_integer_is_its_own_answer_whatever_comes_before(number: int, before: str) -> None:
    assert judged(f"{before}\nAnswer: ${number:,}$", str(number)).reward == 1.0
    assert judged(f"{before}\nAnswer: {number + 1}", str(number)).reward == -1.0


def test_a_row_without_an_answer_is_an_error_and_not_a_minus_one() -> None:
    with pytest.raises(VerifierError, match="no answer"):
        judged("Answer: 1", " ")
