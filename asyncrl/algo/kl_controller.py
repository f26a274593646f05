"""
The weight of the KL taken from the reward: fixed, or moved until the KL is what was asked for.

    KL of a step above target ──▶ weight up, by at most a fifth for every `horizon` trajectories; below ──▶ down
"""

from dataclasses import dataclass
from math import isnan

from asyncrl.errors import ConfigError

MAX_ERROR = 0.2
"""However far the KL is from its target, it counts as no further off than this share of it."""


@dataclass(slots=True)
class KlController:
    """
    Holds the coefficient, which is all its state: a checkpoint keeps ``coef``.

    Example:
        controller = KlController(coef=0.1, target=0.05, horizon=10_000)
        controller.update(0.08, num_trajectories=512)
    """

    coef: float
    """Weight of the KL in the rewards of the next step."""
    target: float = 0.0
    """KL of a token, in nats, that the coefficient is moved to reach; 0 leaves it as it is."""
    horizon: int = 10_000
    """Trajectories over which it may move by a fifth."""

    def update(self, kl: float, num_trajectories: int) -> None:
        """
        Look at what a step's KL was.

            coef ← coef (1 + clip(kl / target - 1, ±0.2) num_trajectories / horizon)

        Args:
            kl: Mean over a trajectory's tokens, then over the step's trajectories, nats.
            num_trajectories: Of the step.

        Raises:
            ConfigError: A step is so long against the horizon that the coefficient could fall to zero or below.

        Source:
            Ziegler et al. 2019, arXiv:1909.08593, sec. 2.2.
        """
        if not self.target:
            return
        share = num_trajectories / self.horizon
        if MAX_ERROR * share >= 1:
            raise ConfigError(
                f"algorithm.kl_horizon is {self.horizon}, but a step has {num_trajectories} trajectories: it "
                f"could take all of the coefficient away; use more than {int(MAX_ERROR * num_trajectories)}"
            )
        if isnan(kl):
            return  # It would stay, and be in every reward from here on.
        error = min(max(kl / self.target - 1, -MAX_ERROR), MAX_ERROR)
        self.coef *= 1 + error * share
