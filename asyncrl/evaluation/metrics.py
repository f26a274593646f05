"""
Metrics of a policy on held-out prompts with k completions each.

    EvaluatedCompletion ─┐
    EvaluatedCompletion ─┼─ EvaluatedPrompt ─┐        accuracy    avg@k      mean over the completions of each prompt,
    EvaluatedCompletion ─┘                   ├─────▶  pass@1, 2, 4 .. k      then over prompts: a prompt that lost
                            EvaluatedPrompt ─┘        maj@k                  completions counts as much as any other
                                                      reward, length_mean, truncated, failed

A completion that failed for good, such as one whose reward function raised, has no verdict and is in no mean: their
number is shown beside the accuracy. With k = 1 there is no avg@k, pass@m or maj@k, only accuracy. With more, pass@m
is over the prompts with at least m completions, and NaN if there are none; maj@k needs a verifier that reports
extracted answers.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import nan

from msgspec import Struct

from asyncrl.evaluation.pass_at_k import curve_points, majority, pass_at

UNNAMED = "unnamed"
"""Name of prompts without a data source, beside others that have one."""


class EvaluatedCompletion(Struct, frozen=True, kw_only=True, gc=False):
    reward: float
    correct: float
    """At least 1: right; below 1 may be partial credit."""
    answer: str | None = None
    """Answer the verifier extracted; empty: it found none; None: this verifier does not report answers."""
    num_tokens: int
    is_cut: bool


class EvaluatedPrompt(Struct, frozen=True, kw_only=True):
    data_source: str
    completions: Sequence[EvaluatedCompletion]
    num_failed: int = 0
    """Completions that failed for good, without a verdict. They are in no mean."""


class EvaluationMetrics(Struct, frozen=True, kw_only=True):
    accuracy: float
    """Mean of ``correct``."""
    num_prompts: int
    """Prompts with at least one verdict."""
    metrics: dict[str, float]


def compute_metrics(prompts: Sequence[EvaluatedPrompt], samples: int) -> EvaluationMetrics:
    """Compute the metrics of prompts with ``samples`` (k) requested completions each."""
    judged = [prompt for prompt in prompts if prompt.completions]
    accuracy = _mean(judged, lambda completion: completion.correct)
    return EvaluationMetrics(
        accuracy=accuracy,
        num_prompts=len(judged),
        metrics=(_curve(judged, accuracy, samples) if samples > 1 else {})
        | {
            "reward": _mean(judged, lambda completion: completion.reward),
            "length_mean": _mean(judged, lambda completion: completion.num_tokens),
            "truncated": _mean(judged, lambda completion: completion.is_cut),
            "failed": float(sum(prompt.num_failed for prompt in prompts)),
        },
    )


def compute_metrics_by_source(prompts: Sequence[EvaluatedPrompt], samples: int) -> dict[str, EvaluationMetrics]:
    """Compute the metrics of each data source, in the order in which the sources first occur."""
    by_source: dict[str, list[EvaluatedPrompt]] = {}
    for prompt in prompts:
        by_source.setdefault(prompt.data_source or UNNAMED, []).append(prompt)
    return {source: compute_metrics(some, samples) for source, some in by_source.items()}


def failed_note(num_failed: float) -> str:
    """Text after an accuracy, such as `` (6 failed)``: completions that are not in it. Empty if there are none."""
    return f" ({num_failed:.0f} failed)" if num_failed else ""


def named_metrics(prompts: Sequence[EvaluatedPrompt], samples: int) -> dict[str, float]:
    """
    Compute all metrics as one dict: ``pass@4``, and with several data sources also ``openai/gsm8k/pass@4``.

    Overall accuracy is among them only as ``avg@k``: messages carry it in a field of its own.
    """
    metrics = dict(compute_metrics(prompts, samples).metrics)
    by_source = compute_metrics_by_source(prompts, samples)
    if len(by_source) > 1:
        for source, found in by_source.items():
            accuracy = {"accuracy": found.accuracy} if samples == 1 else {}
            metrics |= {f"{source}/{name}": value for name, value in (accuracy | found.metrics).items()}
    return metrics


def _curve(judged: Sequence[EvaluatedPrompt], accuracy: float, samples: int) -> dict[str, float]:
    found = {f"avg@{samples}": accuracy}
    for m in curve_points(samples):
        enough = [prompt for prompt in judged if len(prompt.completions) >= m]
        found[f"pass@{m}"] = _average(list(map(partial(_pass, m=m), enough))) if enough else nan
    if any(completion.answer is not None for prompt in judged for completion in prompt.completions):
        found[f"maj@{samples}"] = _average(list(map(_majority, judged)))
    elif not judged:
        found[f"maj@{samples}"] = nan
    return found


def _pass(prompt: EvaluatedPrompt, m: int) -> float:
    num_correct = sum(completion.correct >= 1.0 for completion in prompt.completions)
    return pass_at(m, num_samples=len(prompt.completions), num_correct=num_correct)


def _majority(prompt: EvaluatedPrompt) -> float:
    completions = prompt.completions
    return majority([one.answer or "" for one in completions], [one.correct for one in completions])


def _mean(judged: Sequence[EvaluatedPrompt], value: Callable[[EvaluatedCompletion], float]) -> float:
    return _average([_average([value(completion) for completion in prompt.completions]) for prompt in judged])


def _average(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)
