"""What answers are worth together, overall and by data source."""

from math import isnan

import pytest

from asyncrl.evaluation.metrics import (
    EvaluatedCompletion,
    EvaluatedPrompt,
    evaluation_metrics,
    metrics_by_source,
    named,
)


def a_question(*verdicts: tuple[float, str | None], source: str = "sums", failed: int = 0) -> EvaluatedPrompt:
    """Answers of 10 tokens, 20 tokens, ...; the last one is cut."""
    answers = [
        EvaluatedCompletion(
            reward=2 * correct, correct=correct, text=text, num_tokens=10 * (i + 1), is_cut=i + 1 == len(verdicts)
        )
        for i, (correct, text) in enumerate(verdicts)
    ]
    return EvaluatedPrompt(data_source=source, answers=answers, num_failed=failed)


RIGHT, WRONG = (1.0, "7"), (0.0, "8")


def test_one_answer_a_question_has_no_curve() -> None:
    found = evaluation_metrics([a_question(RIGHT), a_question(WRONG), a_question(failed=1)], 1)

    assert (found.accuracy, found.num_prompts) == (0.5, 2)
    assert found.metrics == {"reward": 1.0, "length_mean": 10.0, "truncated": 1.0, "failed": 1.0}


def test_several_answers_by_hand() -> None:
    found = evaluation_metrics([a_question(RIGHT, WRONG, WRONG, RIGHT), a_question(WRONG, WRONG, WRONG, RIGHT)], 4)

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
    assert "maj@2" not in evaluation_metrics([a_question((1.0, None), (0.0, None))], 2).metrics
    assert evaluation_metrics([a_question((0.0, ""), (0.0, ""))], 2).metrics["maj@2"] == 0.0


def test_part_of_the_way_is_in_the_mean_and_passes_nothing() -> None:
    found = evaluation_metrics([a_question((0.5, None), (0.0, None))], 2).metrics

    assert (found["avg@2"], found["pass@1"], found["pass@2"]) == (0.25, 0.0, 0.0)


def test_a_question_that_lost_answers_counts_as_much_as_any_other() -> None:
    found = evaluation_metrics(
        [a_question(RIGHT, failed=3), a_question(WRONG, WRONG, WRONG, RIGHT), a_question(failed=4)], 4
    )

    assert (found.accuracy, found.num_prompts) == ((1 + 1 / 4) / 2, 2)
    assert found.metrics["pass@1"] == (1 + 1 / 4) / 2
    assert found.metrics["pass@2"] == 1 / 2, "of the one question with two answers"
    assert found.metrics["pass@4"] == 1.0
    assert found.metrics["failed"] == 7.0


def test_where_every_answer_failed_there_is_no_curve_but_the_failures() -> None:
    found = evaluation_metrics([a_question(failed=4)], 4)

    assert (found.accuracy, found.num_prompts) == (0.0, 0)
    assert found.metrics["failed"] == 4.0
    unknown = ("pass@1", "pass@2", "pass@4", "maj@4")
    assert all(isnan(found.metrics[name]) for name in unknown), "who asks for one of them finds it"


def test_several_data_sources_have_marks_of_their_own() -> None:
    questions = [
        a_question(RIGHT, source="openai/gsm8k"),
        a_question(WRONG, source="math"),
        a_question(WRONG, source=""),
    ]

    assert {source: found.accuracy for source, found in metrics_by_source(questions, 1).items()} == {
        "openai/gsm8k": 1.0,
        "math": 0.0,
        "unnamed": 0.0,
    }
    found = named(questions, 1)
    assert (found["openai/gsm8k/accuracy"], found["openai/gsm8k/reward"], found["math/accuracy"]) == (1.0, 2.0, 0.0)
    assert found["reward"] == pytest.approx(2 / 3)


def test_of_many_answers_the_names_carry_the_data_source() -> None:
    found = named([a_question(RIGHT, WRONG, source="openai/gsm8k"), a_question(WRONG, WRONG, source="math")], 2)

    assert (found["avg@2"], found["openai/gsm8k/avg@2"], found["math/avg@2"]) == (0.25, 0.5, 0.0)
    assert (found["openai/gsm8k/pass@2"], found["math/pass@2"]) == (1.0, 0.0)
    assert "math/accuracy" not in found


def test_one_data_source_is_not_told_twice() -> None:
    assert not [name for name in named([a_question(RIGHT, RIGHT)], 2) if "/" in name]
