"""
Limits of a reward, which a worker's verdict and a `ScoredItem` from the network must both respect.

A reward is squared, summed over a step and multiplied by log-probs in float32, which ends at 3e38 and has seven digits:
1e6 leaves room for all of that, and a task that needs more can divide. Metrics are only averaged, unless
``algorithm.reward_weights`` names them: 1e12 holds byte counts and times in nanoseconds of a few minutes.
"""

from __future__ import annotations  # workers of environments may have an older Python

from collections.abc import Mapping
from functools import lru_cache

from asyncrl.foreign_text import acting, escaped

MAX_REWARD = 1e6
"""Largest absolute value of a reward."""
MAX_METRIC = 1e12
"""Largest absolute value of a metric."""
MAX_METRICS = 64
MAX_NAME_CHARS = 100
"""Characters of a metric's name."""
MAX_ANSWER_CHARS = 200
"""Characters of an answer that count in a majority vote; answers that differ only beyond them are equal."""
MAX_REASON_CHARS = 1000
"""Characters of the cause of a failed verdict."""


@lru_cache(1024)
def name_problem(name: str) -> str:
    """
    Return why a metric cannot have this name; empty if it can.

    It becomes a column, a line of a screen and a page, and a key of files: it is shown as it is, or not at all.
    """
    if len(name) > MAX_NAME_CHARS:
        return f"a metric's name has {len(name)} characters, expected at most {MAX_NAME_CHARS}"
    if not name.strip():
        return f"a metric has the name {name!r}, expected letters in it"
    if letter := acting(name):
        return (
            f"metric '{escaped(name)}' has the character U+{ord(letter):04X} in its name, expected letters, digits and "
            f"marks that can be shown; rename it"
        )
    return ""


def problem_of(reward: float, metrics: Mapping[str, float], answer: str | None) -> str:
    """
    Return the first limit that a verdict breaks, as a clause such as ``the reward is nan, expected ...``.

    Returns:
        Empty if the verdict is within its limits.
    """
    if not -MAX_REWARD <= reward <= MAX_REWARD:  # NaN compares false too
        return f"the reward is {reward!r}, expected a finite number of at most {MAX_REWARD:g} either way"
    if len(metrics) > MAX_METRICS:
        return f"there are {len(metrics)} metrics, expected at most {MAX_METRICS}"
    for name, value in metrics.items():
        if not -MAX_METRIC <= value <= MAX_METRIC:
            return f"metric {name[:MAX_NAME_CHARS]!r} is {value!r}, expected a finite number of at most {MAX_METRIC:g}"
        if problem := name_problem(name):
            return problem
    if answer is not None and len(answer) > MAX_ANSWER_CHARS:
        return f"the extracted answer has {len(answer)} characters, expected at most {MAX_ANSWER_CHARS}"
    return ""
