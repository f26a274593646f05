"""Evaluation metrics, overall and by data source."""

from math import isnan

import pytest

from asyncrl.evaluation.metrics import (
    EvaluatedCompletion,
    EvaluatedPrompt,
    compute_metrics,
    compute_metrics_by_source,
    named_metrics,
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
