"""
What an advantage estimator sees of a step: trajectories, their scores, and numbers for each token where there are any.

    outcomes of the whole step ──▶ estimator ──▶ [T] advantages of each         numpy in, numpy out; knows no tensor

Only tokens that the policy wrote are counted: those of a tool are in no array here, so nothing has to be masked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """One trajectory of T tokens. What no estimator in use reads may be None."""

    group_id: int
    """Of its prompt. Trajectories of a group need not be adjacent."""
    length: int
    """T."""
    reward: float
    """The verifier's, for the whole."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Of the verdict; the rewards that make up the score are among them."""
    baseline: float | None = None
    """Score of a greedy answer to the same prompt."""
    penalties: Floats | None = None
    """[T] taken from the reward token by token, such as the KL to a reference."""
    logprobs: Floats | None = None
    """[T] under the policy the step begins with, nats."""
    sum_pi_squared: Floats | None = None
    """[T] sum over the vocabulary of squared probabilities, where the token was chosen."""
    values: Floats | None = None
    """[T] the critic's, of the state before the token."""
    importance: Floats | None = None
    """[T] rollout correction's weights."""

    @property
    def rewards(self) -> Floats:
        """[T] reward of each token: the score on the last, penalties everywhere."""
        rewards = np.zeros(self.length) if self.penalties is None else -self.penalties.astype(np.float64)
        if self.length:
            rewards[-1] += self.reward
        return rewards

    @property
    def total(self) -> float:
        """Score and penalties: what group baselines compare."""
        return self.reward if self.penalties is None else self.reward - float(self.penalties.sum())


Advantages = Sequence[Floats]
"""[T] of each trajectory, in the order of the outcomes."""
