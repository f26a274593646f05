"""
Weight of the KL that is subtracted from the reward: fixed, or adapted to reach a target KL.

    KL of a step above target ──▶ weight up, by at most a fifth per `horizon` trajectories; below ──▶ down
"""

from dataclasses import dataclass
from math import isnan

from asyncrl.errors import ConfigError

MAX_ERROR = 0.2
"""Bound of the relative distance of the KL from its target."""


@dataclass(slots=True)
class KlController:
    """Holds the coefficient. ``coef`` is all the state that a checkpoint needs."""

    coef: float
    """Weight of the KL in the rewards of the next step."""
    target: float = 0.0
    """KL per token to reach, nats; 0 keeps the coefficient fixed."""
    horizon: int = 10_000
    """Trajectories over which the coefficient changes by at most a fifth."""

    def update(self, kl: float, num_trajectories: int) -> None:
        """
        Adapt the coefficient to the KL of a step.

            coef ← coef (1 + clip(kl / target - 1, ±0.2) num_trajectories / horizon)

        Args:
            kl: Mean over a trajectory's tokens, then over the step's trajectories, nats.

        Raises:
            ConfigError: The step is so large relative to the horizon that the coefficient could fall to zero or below.

        Source:
            Ziegler et al. 2019, arXiv:1909.08593, sec. 2.2.
        """
        if not self.target:
            return
        share = num_trajectories / self.horizon
        if MAX_ERROR * share >= 1:
            raise ConfigError(
                f"algorithm.kl_horizon is {self.horizon}, but a step has {num_trajectories} trajectories and could "
                f"reduce the coefficient to 0; use more than {int(MAX_ERROR * num_trajectories)}"
            )
        if isnan(kl):
            return  # The coefficient would stay NaN.
        error = min(max(kl / self.target - 1, -MAX_ERROR), MAX_ERROR)
        self.coef *= 1 + error * share
