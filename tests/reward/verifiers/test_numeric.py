"""Numeric match."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import VerifierError
from asyncrl.reward.verifier import VerifierInput, verdict_of
from asyncrl.reward.verifiers.numeric import Numeric


def score(verifier: Numeric, completion: str, answer: str) -> float:
    return verdict_of(verifier(VerifierInput(completion=completion, answer=answer))).reward


@pytest.mark.parametrize(
    ("tolerance", "completion", "answer", "expected"),
    [
        (1e-6, "it is 18.0.", "18", 1.0),
        (1e-6, "1,234.50", "1234.5", 1.0),
        (1e-6, "1.5e3", "1500", 1.0),
        (1e-6, "first 18, then 3", "18", 0.0),
        (1e-6, "-3", "3", 0.0),
        (1e-6, "−3", "-3", 1.0),
        (1e-6, "−3", "3", 0.0),
        (1e-6, "1e−3", "0.001", 1.0),
        (0.0, "it is .75", "0.75", 1.0),
        (0.0, "it is .75", "75", 0.0),
        (0.0, "-.75", "-0.75", 1.0),
        (0.0, "$.75", "0.75", 1.0),
        (0.0, "so...75", "75", 1.0),
        (0.0, "section 1.2.75", "75", 1.0),
        (0.01, "3.14", "3.14159", 1.0),
        (0.0001, "3.14", "3.14159", 0.0),
        (0.01, "0.005", "0", 0.0),
        (1e-6, "0.0", "0", 1.0),
        (1e-6, "1.6e-19", "0", 0.0),
        (1e-6, "0.0000005", "0.0000001", 0.0),
        (1e-6, "答案是１２。", "12", 1.0),
        (1e-6, "–3", "-3", 1.0),
        (0.0, "0.1", "0.1", 1.0),
        (1e-6, "many", "18", 0.0),
        (1e-6, "1e999", "18", 0.0),
    ],
)
def test_scores_worked_by_hand(tolerance: float, completion: str, answer: str, expected: float) -> None:
    assert score(Numeric(tolerance=tolerance), completion, answer) == expected


@pytest.mark.parametrize("answer", ["", "eighteen", "1e999"])
def test_an_answer_that_is_no_number_is_an_error_and_not_a_zero(answer: str) -> None:
    with pytest.raises(VerifierError, match="no finite number"):
        score(Numeric(), "18", answer)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_equal_to_itself_however_long(number: float) -> None:
    assert score(Numeric(tolerance=0.0), f"so: {number!r}", repr(number)) == 1.0


@pytest.mark.parametrize("unit", ["1", "1,", "1.", "1e", "-", "1e+", ",", "1e1", ".1", "."])
def test_a_hostile_megabyte_is_judged_and_not_rewarded(unit: str) -> None:
    assert score(Numeric(), unit * (1_000_000 // len(unit)), "18") == 0.0
