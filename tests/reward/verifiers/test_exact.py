"""Exact match."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import VerifierError
from asyncrl.reward.verifier import VerifierInput, verdict_of
from asyncrl.reward.verifiers.exact import Exact


def score(verifier: Exact, completion: str, answer: str) -> float:
    return verdict_of(verifier(VerifierInput(completion=completion, answer=answer))).reward


@pytest.mark.parametrize(
    ("verifier", "completion", "answer", "expected"),
    [
        (Exact(), " Paris\n", "Paris", 1.0),
        (Exact(), "paris", "Paris", 0.0),
        (Exact(ignore_case=True), "PARIS", "Paris", 1.0),
        (Exact(), "It is Paris", "Paris", 0.0),
        (Exact(after="Answer:"), "Answer: Rome\nAnswer: Paris", "Paris", 1.0),
        (Exact(after="Answer:"), "Answer: Paris\nAnswer: Rome", "Paris", 0.0),
        (Exact(after="Answer:"), "Paris", "Paris", 0.0),
        (Exact(), "", "Paris", 0.0),
    ],
)
def test_scores_worked_by_hand(verifier: Exact, completion: str, answer: str, expected: float) -> None:
    assert score(verifier, completion, answer) == expected


@pytest.mark.parametrize(("verifier", "answer"), [(Exact(), ""), (Exact(after="####"), " \n")])
def test_a_row_without_an_answer_is_an_error_and_not_a_one(verifier: Exact, answer: str) -> None:
    with pytest.raises(VerifierError, match="no answer"):
        score(verifier, "####", answer)


@given(st.text(), st.text().filter(str.strip))
def test_the_score_is_equality_up_to_outer_white_space(completion: str, answer: str) -> None:
    assert score(Exact(), completion, answer) == float(completion.strip() == answer.strip())


def test_a_hostile_megabyte_is_not_rewarded() -> None:
    assert score(Exact(after="####"), "#" * 1_000_000, "4") == 0.0
