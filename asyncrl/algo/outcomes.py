"""
Input of an advantage estimator: the trajectories of a step with their rewards and per-token arrays.

    outcomes of the whole step ──▶ estimator ──▶ [T] advantages of each         NumPy in, NumPy out; no torch

Only tokens that the policy wrote and that are trained are included. Tokens of an environment are in no array here, so
there is no mask. An episode is one trajectory, whatever its number of turns and branches; one of several seats is a
trajectory for each seat that spoke, and an estimator sees those of one seat at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import AsyncrlError

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """One trajectory of T tokens. Fields that the estimator in use does not read may be None."""

    group_id: int
    """Prompt group. Trajectories of a group need not be adjacent."""
    length: int
    """T, trained tokens that the policy wrote."""
    reward: float
    """Reward of the whole trajectory."""
    seat: int = 0
    """Seat of the episode that wrote it."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the verdict, which include the parts of the reward."""
    baseline: float | None = None
    """Reward of the greedy answer to the same prompt."""
    token_rewards: Floats | None = None
    """[T] reward of each token, such as those at the ends of turns; None puts all of ``reward`` on the last one."""
    penalties: Floats | None = None
    """[T] subtracted from the reward token by token, such as the KL to a reference."""
    logprobs: Floats | None = None
    """[T] under the policy that the step begins with, nats."""
    sum_pi_squared: Floats | None = None
    """[T] sum over the vocabulary of squared probabilities, at the position of the token."""
    values: Floats | None = None
    """[T] the critic's value of the state before the token."""
    importance: Floats | None = None
    """[T] importance weights of the off-policy correction."""

    @property
    def rewards(self) -> Floats:
        """[T] ``token_rewards``, or else ``reward`` on the last token, minus the penalties."""
        rewards = np.zeros(self.length) if self.penalties is None else -self.penalties.astype(np.float64)
        if self.token_rewards is not None:
            rewards += self.token_rewards
        elif self.length:
            rewards[-1] += self.reward
        return rewards

    @property
    def total(self) -> float:
        """Reward minus the sum of penalties, which group baselines compare."""
        return self.reward if self.penalties is None else self.reward - float(self.penalties.sum())

    def per_token(self, need: Literal["values", "logprobs", "sum_pi_squared"], *, name: str) -> Floats:
        """[T] field as float64; raises `AsyncrlError`, with the estimator's ``name``, if it is None or not [T]."""
        found: Floats | None = getattr(self, need)
        if found is None or len(found) != self.length:
            raise AsyncrlError(
                f"{name} needs {need} for each of {self.length} tokens of a trajectory of group {self.group_id}, got "
                f"{'none' if found is None else len(found)}"
            )
        return np.asarray(found, dtype=np.float64)

    def greedy_reward(self, *, name: str) -> float:
        """The ``baseline``; raises `AsyncrlError` with the ``name`` of the estimator if it is None."""
        if self.baseline is None:
            raise AsyncrlError(f"{name} needs the reward of a greedy answer to the prompt of group {self.group_id}")
        return self.baseline


Advantages = Sequence[Floats]
"""[T] for each trajectory, in the order of the outcomes."""
