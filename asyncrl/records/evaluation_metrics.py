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

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from math import nan

from msgspec import Struct

# ── pass at k ─────────────────────────────────────────────────────────────────────────────────
# Statistics of the n completions of one prompt, c of them correct.
#
#   pass@m    probability that at least one of m completions is correct     unbiased estimate, for n >= m
#   maj@n     correctness of the most frequent answer                       mean over answers that are equally frequent


def pass_at(m: int, *, num_samples: int, num_correct: int) -> float:
    """
    Probability that ``m`` of the completions, drawn without replacement, contain a correct one.

        pass@m = 1 - C(n - c, m) / C(n, m)

    Its expectation is the true pass@m for every n >= m; ``1 - (1 - c/n)^m`` would be too low.

    Raises:
        ValueError: ``m`` is not in [1, n], or c not in [0, n].

    Source:
        Chen et al. 2021, arXiv:2107.03374, eq. 1.
    """
    if not 1 <= m <= num_samples or not 0 <= num_correct <= num_samples:
        raise ValueError(f"pass@{m} of {num_samples} completions, {num_correct} right: expected 1 <= m, right <= all")
    return 1.0 - math.comb(num_samples - num_correct, m) / math.comb(num_samples, m)


def majority(answers: Sequence[str], corrects: Sequence[float]) -> float:
    """
    Mean correctness of the most frequent answer; ties are averaged, never drawn.

    Args:
        answers: [n] Extracted by the verifier. A completion with an empty answer has no vote.
        corrects: [n] Correctness of each completion.

    Returns:
        0.0 if all answers are empty.
    """
    votes: dict[str, list[float]] = {}
    for answer, correct in zip(answers, corrects, strict=True):
        if answer:
            votes.setdefault(answer, []).append(correct)
    most = max(map(len, votes.values()), default=0)
    winners = [sum(corrects) / most for corrects in votes.values() if len(corrects) == most]
    return sum(winners) / len(winners) if winners else 0.0


def curve_points(samples: int) -> Iterator[int]:
    """Values of m for which pass@m is reported: powers of two below ``samples``, then ``samples``."""
    m = 1
    while m < samples:
        yield m
        m *= 2
    yield samples


# ── metrics ───────────────────────────────────────────────────────────────────────────────────

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


def graded_reward(accuracy: float | None, reward: float | None) -> float | None:
    """Mean reward of an evaluation; None if that is its accuracy, as with rewards of 0 and 1, or was not recorded."""
    return None if accuracy is None or reward is None or math.isclose(reward, accuracy) else reward


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


def metric_names(data_sources: Collection[str], samples: int) -> list[str]:
    """Names by which an evaluation may be judged: ``accuracy``, and those of `named_metrics` for these sources."""
    curve = [f"avg@{samples}", *(f"pass@{m}" for m in curve_points(samples)), f"maj@{samples}"] if samples > 1 else []
    names = [*curve, "reward", "length_mean", "truncated", "failed"]
    sources = [source or UNNAMED for source in sorted(data_sources)] if len(data_sources) > 1 else []
    of_each = [*([] if curve else ["accuracy"]), *names]
    return ["accuracy", *names, *(f"{source}/{name}" for source in sources for name in of_each)]


def pass_curve(metrics: Mapping[str, float]) -> list[tuple[float, float]]:
    """``(m, pass@m)`` for every m in ``metrics``, ascending."""
    return sorted(
        (int(name.removeprefix("pass@")), value) for name, value in metrics.items() if name.startswith("pass@")
    )


def multi_sample_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """``avg@k``, ``maj@k`` and the ``pass@k`` of the largest k; empty with one completion per prompt."""
    found = {name: value for name, value in metrics.items() if name.startswith(("avg@", "maj@"))}
    return found | {f"pass@{m}": value for m, value in pass_curve(metrics)[-1:]}


def accuracy_by_source(metrics: Mapping[str, float]) -> dict[str, float]:
    """Accuracy of each data source; empty if there was only one."""
    by_source = {}
    for full_name, value in metrics.items():
        source, _, name = full_name.rpartition("/")
        if source and (name == "accuracy" or name.startswith("avg@")):  # One completion per prompt, or several.
            by_source[source] = value
    return by_source


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
