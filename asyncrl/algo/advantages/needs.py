"""What an estimator cannot do without, and says so."""

from typing import Literal

import numpy as np

from asyncrl.algo.outcomes import Floats, Outcome
from asyncrl.errors import AsyncrlError

Need = Literal["values", "logprobs", "sum_pi_squared", "baseline"]
"""Fields of an `Outcome` that are computed only for an estimator that reads them."""


def per_token(outcome: Outcome, need: Literal["values", "logprobs", "sum_pi_squared"], *, name: str) -> Floats:
    """
    [T] float64.

    Raises:
        AsyncrlError: The outcome has none, or not one for each token; names the estimator.
    """
    found: Floats | None = getattr(outcome, need)
    if found is None or len(found) != outcome.length:
        got = "none" if found is None else f"{len(found)}"
        raise AsyncrlError(
            f"{name} needs {need} of each of {outcome.length} tokens of a trajectory of group {outcome.group_id}, got "
            f"{got}"
        )
    return np.asarray(found, dtype=np.float64)


def greedy_score(outcome: Outcome, *, name: str) -> float:
    """
    Score of a greedy answer to the same prompt.

    Raises:
        AsyncrlError: The outcome has none; names the estimator.
    """
    if outcome.baseline is None:
        raise AsyncrlError(
            f"{name} needs the score of a greedy answer to the prompt of group {outcome.group_id}, got none"
        )
    return outcome.baseline
