"""
What n completions of one prompt say about the policy: how often it is right, ever right, and right by majority.

    pass@m    it is right at least once in m tries       unbiased, from n >= m tries of which c were right
    maj@n     the answer most completions give is right  of completions that are equally frequent answers, the mean

Numbers in, numbers out.
"""

import math
from collections.abc import Iterator, Sequence


def pass_at(m: int, *, num_samples: int, num_correct: int) -> float:
    """
    How probable it is that of ``m`` completions, drawn without replacement from those there are, one is right.

        pass@m = 1 - C(n - c, m) / C(n, m)

    Its expectation is the true pass@m for every n >= m; ``1 - (1 - c/n)^m`` would be too low.

    Raises:
        ValueError: There are fewer than ``m`` completions, or more right ones than there are.

    Source:
        Chen et al. 2021, arXiv:2107.03374, eq. 1.
    """
    if not 1 <= m <= num_samples or not 0 <= num_correct <= num_samples:
        raise ValueError(f"pass@{m} of {num_samples} completions, {num_correct} right: expected 1 <= m, right <= all")
    return 1.0 - math.comb(num_samples - num_correct, m) / math.comb(num_samples, m)


def majority(answers: Sequence[str], corrects: Sequence[float]) -> float:
    """
    How right the most frequent answer is; where several are, the mean over them: no draw decides.

    Args:
        answers: [n] As the verifier extracted them. Empty: the completion has none, and does not vote.
        corrects: [n] How right each completion is.

    Returns:
        0.0 if nobody votes.
    """
    votes: dict[str, list[float]] = {}
    for answer, correct in zip(answers, corrects, strict=True):
        if answer:
            votes.setdefault(answer, []).append(correct)
    most = max(map(len, votes.values()), default=0)
    winners = [sum(corrects) / most for corrects in votes.values() if len(corrects) == most]
    return sum(winners) / len(winners) if winners else 0.0


def tries(samples: int) -> Iterator[int]:
    """
    The m for which pass@m is told: powers of two, and ``samples`` itself.

    Example:
        list(tries(12)) == [1, 2, 4, 8, 12]
    """
    m = 1
    while m < samples:
        yield m
        m *= 2
    yield samples
