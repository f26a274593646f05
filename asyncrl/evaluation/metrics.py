"""
What an examination says of a policy: held-out prompts, each answered several times, every answer judged by itself.

    Answer ─┐
    Answer ─┼─ Question ─┐                            accuracy    avg@k      of each question first, then over
    Answer ─┘            ├─ marks ─▶ Marks ───────▶   pass@1, 2, 4 .. k      questions: one that lost completions
              Question ──┘          by data source    maj@k                  counts as much as any other
                                                      reward, length_mean, truncated, failed

With one answer a question there is nothing to choose from: then accuracy stands alone. With more, pass@m is of the
questions with at least m answers, and not a number if there are none; maj@k is there if the verifier says what it takes
for the answer.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import nan

from msgspec import Struct

from asyncrl.evaluation.pass_at_k import majority, pass_at, tries

UNNAMED = "unnamed"
"""Where prompts without a data source stand beside others."""


class EvaluatedCompletion(Struct, frozen=True, kw_only=True, gc=False):
    """One completion, and the verdict on it."""

    reward: float
    correct: float
    """From 1 on it is right; less may be part of the way."""
    text: str | None = None
    """What the verifier took for the answer; empty if there was none; None if this verifier does not say."""
    num_tokens: int
    is_cut: bool


class EvaluatedPrompt(Struct, frozen=True, kw_only=True):
    """One prompt."""

    data_source: str
    answers: Sequence[EvaluatedCompletion]
    num_failed: int = 0
    """Completions without a verdict, for good. They are in no mean."""


class EvaluationMetrics(Struct, frozen=True, kw_only=True):
    """What came out."""

    accuracy: float
    """How right a completion is, in the mean."""
    num_prompts: int
    """That have an answer with a verdict."""
    metrics: dict[str, float]


def evaluation_metrics(questions: Sequence[EvaluatedPrompt], samples: int) -> EvaluationMetrics:
    """
    The marks for these questions.

    Args:
        samples: Answers that were wanted of each (k).
    """
    answered = [question for question in questions if question.answers]
    accuracy = _mean(answered, lambda question: _average([answer.correct for answer in question.answers]))
    return EvaluationMetrics(
        accuracy=accuracy,
        num_prompts=len(answered),
        metrics=(_of_many(answered, accuracy, samples) if samples > 1 else {})
        | {
            "reward": _mean(answered, lambda question: _average([answer.reward for answer in question.answers])),
            "length_mean": _mean(answered, lambda question: _average([a.num_tokens for a in question.answers])),
            "truncated": _mean(answered, lambda question: _average([answer.is_cut for answer in question.answers])),
            "failed": float(sum(question.num_failed for question in questions)),
        },
    )


def metrics_by_source(questions: Sequence[EvaluatedPrompt], samples: int) -> dict[str, EvaluationMetrics]:
    """The marks for the questions of each data source, in the order in which they first occur."""
    by_source: dict[str, list[EvaluatedPrompt]] = {}
    for question in questions:
        by_source.setdefault(question.data_source or UNNAMED, []).append(question)
    return {source: evaluation_metrics(some, samples) for source, some in by_source.items()}


def named(questions: Sequence[EvaluatedPrompt], samples: int) -> dict[str, float]:
    """
    All of it by name: ``pass@4``, and, where there are several data sources, ``openai/gsm8k/pass@4``.

    Overall accuracy is not among them, except as ``avg@k``: an evaluation has a place of its own for it.
    """
    all_of_them = dict(evaluation_metrics(questions, samples).metrics)
    by_source = metrics_by_source(questions, samples)
    if len(by_source) > 1:
        for source, found in by_source.items():
            accuracy = {"accuracy": found.accuracy} if samples == 1 else {}
            all_of_them |= {f"{source}/{name}": value for name, value in (accuracy | found.metrics).items()}
    return all_of_them


def _of_many(answered: Sequence[EvaluatedPrompt], accuracy: float, samples: int) -> dict[str, float]:
    found = {f"avg@{samples}": accuracy}
    for m in tries(samples):
        enough = [question for question in answered if len(question.answers) >= m]
        found[f"pass@{m}"] = _mean(enough, partial(_passes, m=m)) if enough else nan
    if any(answer.text is not None for question in answered for answer in question.answers):
        found[f"maj@{samples}"] = _mean(answered, _majority)
    elif not answered:
        found[f"maj@{samples}"] = nan
    return found


def _passes(question: EvaluatedPrompt, m: int) -> float:
    num_correct = sum(answer.correct >= 1.0 for answer in question.answers)
    return pass_at(m, num_samples=len(question.answers), num_correct=num_correct)


def _majority(question: EvaluatedPrompt) -> float:
    answers = question.answers
    return majority([answer.text or "" for answer in answers], [answer.correct for answer in answers])


def _mean(questions: Sequence[EvaluatedPrompt], of: Callable[[EvaluatedPrompt], float]) -> float:
    return _average([of(question) for question in questions])


def _average(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)
