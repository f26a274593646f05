"""Failures are said in words, with how many of how many."""

import pytest

from asyncrl.observe.failure_sentences import sentences


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (
            "reward: the function raised KeyError: 'answer' (score.py:12)",
            "KeyError in 41 of 88 verdicts: 'answer' (score.py:12)",
        ),
        ("reward: the function raised ZeroDivisionError", "ZeroDivisionError in 41 of 88 verdicts"),
        ("reward: the function raised Weird: on Mondays", "Weird in 41 of 88 verdicts: on Mondays"),
        ("reward: it took longer than 10 s", "41 of 88 verdicts failed: it took longer than 10 s"),
        ("rollout: EngineError: out of memory", "EngineError in 41 completions: out of memory"),
        ("spool: gone", "41 attempts (spool) failed: gone"),
    ],
)
def test_a_cause_is_a_sentence(cause: str, said: str) -> None:
    assert sentences({cause: 41}, {"reward": 88}) == [said]


def test_the_most_frequent_causes_come_first_and_the_rest_is_summed() -> None:
    counts = {"reward: a b": 1, "reward: ValueError: no": 1200, "rollout: closed": 3, "x: y": 2, "x: z": 2}
    assert sentences(counts, {"reward": 5000}) == [
        "ValueError in 1,200 of 5,000 verdicts: no",
        "3 completions failed: closed",
        "2 attempts (x) failed: y",
        "3 more for 2 other causes",
    ]


def test_one_failure_is_singular() -> None:
    assert sentences({"trainer: boom": 1}, {}) == ["1 batch failed: boom"]
    assert sentences({"reward: boom": 1}, {}) == ["1 verdict failed: boom"]
