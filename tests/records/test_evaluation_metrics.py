"""Evaluation metrics, overall and by data source."""

from itertools import combinations
from math import isnan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.records.evaluation_metrics import (
    EvaluatedCompletion,
    EvaluatedPrompt,
    compute_metrics,
    compute_metrics_by_source,
    curve_points,
    majority,
    metric_names,
    named_metrics,
    pass_at,
)


def a_prompt(*verdicts: tuple[float, str | None], source: str = "sums", failed: int = 0) -> EvaluatedPrompt:
    """Completions of 10 tokens, 20 tokens, ...; the last one is cut."""
    completions = [
        EvaluatedCompletion(
            reward=2 * correct, correct=correct, answer=answer, num_tokens=10 * (i + 1), is_cut=i + 1 == len(verdicts)
        )
        for i, (correct, answer) in enumerate(verdicts)
    ]
    return EvaluatedPrompt(data_source=source, completions=completions, num_failed=failed)


RIGHT, WRONG = (1.0, "7"), (0.0, "8")


def test_one_completion_a_prompt_has_no_curve() -> None:
    found = compute_metrics([a_prompt(RIGHT), a_prompt(WRONG), a_prompt(failed=1)], 1)

    assert (found.accuracy, found.num_prompts) == (0.5, 2)
    assert found.metrics == {"reward": 1.0, "length_mean": 10.0, "truncated": 1.0, "failed": 1.0}


def test_several_completions_by_hand() -> None:
    found = compute_metrics([a_prompt(RIGHT, WRONG, WRONG, RIGHT), a_prompt(WRONG, WRONG, WRONG, RIGHT)], 4)

    assert found.accuracy == 3 / 8
    assert found.metrics == pytest.approx(
        {
            "avg@4": 3 / 8,
            "pass@1": 3 / 8,
            "pass@2": (5 / 6 + 1 / 2) / 2,
            "pass@4": 1.0,
            "maj@4": (1 / 2 + 0) / 2,
            "reward": 3 / 4,
            "length_mean": 25.0,
            "truncated": 1 / 4,
            "failed": 0.0,
        }
    )


def test_a_verifier_that_names_no_answers_gives_no_majority() -> None:
    assert "maj@2" not in compute_metrics([a_prompt((1.0, None), (0.0, None))], 2).metrics
    assert compute_metrics([a_prompt((0.0, ""), (0.0, ""))], 2).metrics["maj@2"] == 0.0


def test_partial_credit_is_in_the_mean_and_passes_nothing() -> None:
    found = compute_metrics([a_prompt((0.5, None), (0.0, None))], 2).metrics

    assert (found["avg@2"], found["pass@1"], found["pass@2"]) == (0.25, 0.0, 0.0)


def test_a_prompt_that_lost_completions_counts_as_much_as_any_other() -> None:
    found = compute_metrics([a_prompt(RIGHT, failed=3), a_prompt(WRONG, WRONG, WRONG, RIGHT), a_prompt(failed=4)], 4)

    assert (found.accuracy, found.num_prompts) == ((1 + 1 / 4) / 2, 2)
    assert found.metrics["pass@1"] == (1 + 1 / 4) / 2
    assert found.metrics["pass@2"] == 1 / 2, "over the one prompt with two completions"
    assert found.metrics["pass@4"] == 1.0
    assert found.metrics["failed"] == 7.0


def test_if_every_completion_failed_the_curve_is_nan() -> None:
    found = compute_metrics([a_prompt(failed=4)], 4)

    assert (found.accuracy, found.num_prompts) == (0.0, 0)
    assert found.metrics["failed"] == 4.0
    unknown = ("pass@1", "pass@2", "pass@4", "maj@4")
    assert all(isnan(found.metrics[name]) for name in unknown), "the names are there all the same"


def test_several_data_sources_have_metrics_of_their_own() -> None:
    prompts = [
        a_prompt(RIGHT, source="openai/gsm8k"),
        a_prompt(WRONG, source="math"),
        a_prompt(WRONG, source=""),
    ]

    assert {source: found.accuracy for source, found in compute_metrics_by_source(prompts, 1).items()} == {
        "openai/gsm8k": 1.0,
        "math": 0.0,
        "unnamed": 0.0,
    }
    found = named_metrics(prompts, 1)
    assert (found["openai/gsm8k/accuracy"], found["openai/gsm8k/reward"], found["math/accuracy"]) == (1.0, 2.0, 0.0)
    assert found["reward"] == pytest.approx(2 / 3)


def test_of_many_completions_the_names_carry_the_data_source() -> None:
    found = named_metrics([a_prompt(RIGHT, WRONG, source="openai/gsm8k"), a_prompt(WRONG, WRONG, source="math")], 2)

    assert (found["avg@2"], found["openai/gsm8k/avg@2"], found["math/avg@2"]) == (0.25, 0.5, 0.0)
    assert (found["openai/gsm8k/pass@2"], found["math/pass@2"]) == (1.0, 0.0)
    assert "math/accuracy" not in found


def test_one_data_source_is_not_reported_twice() -> None:
    assert not [name for name in named_metrics([a_prompt(RIGHT, RIGHT)], 2) if "/" in name]


# ── test pass at k ────────────────────────────────────────────────────────────────────────────
# pass@m and majority, by hand and against counting every way to draw.


@pytest.mark.parametrize(
    ("m", "num_samples", "num_correct", "expected"),
    [
        pytest.param(1, 4, 1, 0.25, id="one try: the share that is right"),
        pytest.param(2, 4, 1, 0.5, id="half of the pairs hold the right one"),
        pytest.param(2, 4, 2, 5 / 6, id="one pair of six holds neither"),
        pytest.param(3, 4, 2, 1.0, id="no three without a right one"),
        pytest.param(4, 4, 0, 0.0, id="never right"),
        pytest.param(1, 1, 1, 1.0, id="always right"),
    ],
)
def test_pass_at_m_by_hand(m: int, num_samples: int, num_correct: int, expected: float) -> None:
    assert pass_at(m, num_samples=num_samples, num_correct=num_correct) == pytest.approx(expected)


@given(st.integers(1, 9), st.data())
def test_pass_at_m_is_the_share_of_draws_that_hold_a_right_one(num_samples: int, data: st.DataObject) -> None:
    num_correct = data.draw(st.integers(0, num_samples))
    m = data.draw(st.integers(1, num_samples))
    draws = list(combinations([True] * num_correct + [False] * (num_samples - num_correct), m))

    expected = sum(map(any, draws)) / len(draws)
    assert pass_at(m, num_samples=num_samples, num_correct=num_correct) == pytest.approx(expected)


@given(st.integers(1, 8), st.integers(1, 8), st.floats(0, 1))
def test_its_expectation_is_the_true_pass_at_m_for_any_n(n: int, m: int, p: float) -> None:
    """Summed over every outcome of n independent completions."""
    n = max(n, m)
    draws = [sum(chosen) for chosen in _outcomes(n)]
    expectation = sum(p**c * (1 - p) ** (n - c) * pass_at(m, num_samples=n, num_correct=c) for c in draws)
    assert expectation == pytest.approx(1 - (1 - p) ** m)


def _outcomes(n: int) -> list[tuple[int, ...]]:
    return [tuple(outcome >> i & 1 for i in range(n)) for outcome in range(2**n)]


def test_it_is_exact_for_astronomical_numbers_of_draws() -> None:
    assert pass_at(512, num_samples=1024, num_correct=1) == pytest.approx(0.5)


@pytest.mark.parametrize(("m", "num_samples", "num_correct"), [(0, 4, 1), (5, 4, 1), (2, 4, 5), (1, 0, 0)])
def test_more_tries_than_completions_are_refused(m: int, num_samples: int, num_correct: int) -> None:
    with pytest.raises(ValueError, match="expected 1 <= m"):
        pass_at(m, num_samples=num_samples, num_correct=num_correct)


@pytest.mark.parametrize(
    ("answers", "corrects", "expected"),
    [
        pytest.param(["7", "8", "7"], [1.0, 0.0, 1.0], 1.0, id="two of three are right"),
        pytest.param(["7", "8", "8"], [1.0, 0.0, 0.0], 0.0, id="two of three are wrong"),
        pytest.param(["7", "8", "8", "7", "9"], [1, 0, 0, 1, 0], 0.5, id="a tie counts half"),
        pytest.param(["7", "8", "9"], [1, 0, 0], 1 / 3, id="nobody agrees"),
        pytest.param(["7", "", "", ""], [1, 0, 0, 0], 1.0, id="no answer is no vote"),
        pytest.param(["", ""], [0.0, 0.0], 0.0, id="nobody votes"),
        pytest.param([], [], 0.0, id="nobody is asked"),
    ],
)
def test_the_most_frequent_answer_decides(answers: list[str], corrects: list[float], expected: float) -> None:
    assert majority(answers, corrects) == pytest.approx(expected)


@given(st.lists(st.sampled_from(["", "1", "2", "3"]), max_size=9), st.randoms(use_true_random=False))
def test_the_order_of_completions_decides_nothing(answers: list[str], random: Random) -> None:
    shuffled = answers.copy()
    random.shuffle(shuffled)
    right = {"1"}
    one, other = (majority(some, [float(answer in right) for answer in some]) for some in (answers, shuffled))
    assert one == pytest.approx(other)


@pytest.mark.parametrize(("samples", "points"), [(1, [1]), (2, [1, 2]), (12, [1, 2, 4, 8, 12]), (16, [1, 2, 4, 8, 16])])
def test_pass_at_m_is_reported_for_powers_of_two_and_for_all(samples: int, points: list[int]) -> None:
    assert list(curve_points(samples)) == points


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("sources", [("sums",), ("sums", "a/b"), ("", "sums")])
def test_every_metric_of_an_evaluation_has_its_name_beforehand(samples: int, sources: tuple[str, ...]) -> None:
    found = named_metrics([a_prompt(*[RIGHT] * samples, source=source) for source in sources], samples)
    assert set(metric_names(sources, samples)) == {"accuracy", *found}
