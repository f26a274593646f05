"""Failures are said in words, with how many of how many."""

import pytest

from asyncrl.records.failure_sentences import AFTER_A_TURN, BIAS, OTHERS, RaisedError, bias, by_site, sentences


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (
            "reward: the function raised KeyError: 'answer' (score.py:12)",
            "KeyError at score.py:12 in 41 of 88 attempts at a verdict (47 %), such as 'answer'",
        ),
        (
            "reward: the function raised ValueError: cannot parse aifd (/home/me/raises.py:3)",
            "ValueError at raises.py:3 in 41 of 88 attempts at a verdict (47 %), such as 'cannot parse aifd'",
        ),
        ("reward: the function raised Weird (a.py:3)", "Weird at a.py:3 in 41 of 88 attempts at a verdict (47 %)"),
        (
            "rollout: step raised OSError: full (env.py:5)",
            "OSError at env.py:5 in 41 attempts at a completion, such as 'full'",
        ),
        ("reward: the function raised ZeroDivisionError", "ZeroDivisionError in 41 of 88 attempts at a verdict (47 %)"),
        ("reward: the function raised Weird: on Mondays", "Weird in 41 of 88 attempts at a verdict (47 %): on Mondays"),
        ("reward: it took longer than 10 s", "41 of 88 attempts at a verdict (47 %) failed: it took longer than 10 s"),
        ("rollout: EngineError: out of memory", "EngineError in 41 attempts at a completion: out of memory"),
        ("spool: gone", "41 attempts (spool) failed: gone"),
    ],
)
def test_a_cause_is_a_sentence(cause: str, said: str) -> None:
    assert sentences({cause: 41}, {"reward": 88}) == [said]


def test_the_most_frequent_causes_come_first_and_the_rest_is_summed() -> None:
    counts = {"reward: a b": 1, "reward: ValueError: no": 1200, "rollout: closed": 3, "x: y": 2, "x: z": 2}
    assert sentences(counts, {"reward": 5000}) == [
        "ValueError in 1,200 of 5,000 attempts at a verdict (24 %): no",
        "3 attempts at a completion failed: closed",
        "2 attempts (x) failed: y",
        "3 more for 2 other causes",
    ]


@pytest.mark.parametrize(
    ("cause", "is_bias"),
    [
        (f"environment: {AFTER_A_TURN}step raised ValueError: no move (env.py:3)", True),
        (f"environment: {AFTER_A_TURN}environment.command ended with exit code 1: no JSON", True),
        ("reward: the function raised KeyError: 'answer' (score.py:12)", True),
        ("environment: reset raised ValueError: no board (env.py:3)", False),
        ("environment: environment.command ended with exit code 1: no module named x", False),
        ("rollout: EngineError: out of memory", False),
    ],
)
def test_failures_that_may_depend_on_what_the_policy_wrote_are_told_to_be_a_bias(cause: str, is_bias: bool) -> None:
    assert bias({cause: 3}, {"rollout": 10, "reward": 10}) == [BIAS] * is_bias
    assert not bias({cause: 10}, {"rollout": 10, "reward": 10}), "where all fail, nothing is chosen"


def test_an_episode_is_one_of_the_completions() -> None:
    assert sentences({"environment: closed": 3}, {"rollout": 12}) == [
        "3 of 12 attempts at an episode (25 %) failed: closed"
    ]
    assert sentences({"environment: closed": 1}, {}) == ["1 attempt at an episode failed: closed"]


def test_causes_beyond_the_first_ones_are_summed_with_the_rest_however_many_they_are() -> None:
    counts = {OTHERS: 438, "x: a": 4, "x: b": 3, "x: c": 2, "x: d": 1}
    assert sentences(counts, {})[-1] == "439 more for other causes"
    assert sentences({OTHERS: 438}, {}) == ["438 more for other causes"]


def test_a_share_that_rounds_to_nothing_is_not_zero() -> None:
    assert sentences({"reward: late": 2}, {"reward": 10_000}) == [
        "2 of 10,000 attempts at a verdict (under 1 %) failed: late"
    ]


def test_a_long_reason_keeps_the_place() -> None:
    raised = RaisedError.read(f"the function raised ValueError: {'x' * 400} (score.py:12)")
    assert raised is not None
    short = raised.within(100)
    assert len(short) == 100
    again = RaisedError.read(short)
    assert again is not None
    assert (again.before, again.site) == (raised.before, "ValueError at score.py:12")
    assert again.text.strip("x") == "…"
    assert RaisedError.read("it took longer than 10 s") is None


def test_one_failure_is_singular() -> None:
    assert sentences({"trainer: boom": 1}, {}) == ["1 attempt at a batch failed: boom"]
    assert sentences({"reward: boom": 1}, {}) == ["1 attempt at a verdict failed: boom"]


def test_counts_by_site_name_no_text_of_one_exception() -> None:
    counts = {
        "reward: 3 is no number": 2,
        "reward: the function raised KeyError: '21' (/home/me/bad.py:4)": 40,
        "environment: KeyError: '21' (/home/me/bad.py:4)": 1,
        "rollout: EngineError: out of memory": 3,
    }
    assert list(by_site(counts).items()) == [
        ("reward: KeyError at bad.py:4", 40),
        ("rollout: EngineError: out of memory", 3),
        ("reward: 3 is no number", 2),
        ("environment: KeyError at bad.py:4", 1),
    ]
