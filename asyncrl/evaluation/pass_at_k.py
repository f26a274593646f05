"""
Statistics of the n completions of one prompt, c of them correct.

    pass@m    probability that at least one of m completions is correct     unbiased estimate, for n >= m
    maj@n     correctness of the most frequent answer                       mean over answers that are equally frequent
"""

import math
from collections.abc import Iterator, Sequence


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
