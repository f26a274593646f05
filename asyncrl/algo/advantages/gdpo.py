"""Several rewards, each compared with its siblings' by itself, so that the loudest does not drown the others."""

from collections.abc import Mapping, Sequence

import numpy as np

from asyncrl.algo.advantages.group_baselines import standardized
from asyncrl.algo.advantages.groups import on_every_token, per_group
from asyncrl.algo.advantages.whiten import whitened
from asyncrl.algo.outcomes import Advantages, Floats, Outcome
from asyncrl.errors import AsyncrlError


def gdpo(outcomes: Sequence[Outcome], *, reward_weights: Mapping[str, float]) -> Advantages:
    """
    Each reward above its group's mean in its group's deviations, added up by weight, whitened over the step.

        A_i^k = (r_i^k - mean(r^k)) / (std(r^k) + 1e-6),    A = whiten(sum_k w_k A^k)

    Reads the metrics of the verdicts and not the score they make up: penalties on tokens do not count.

    Args:
        outcomes: The whole step.
        reward_weights: Names of metrics, and their weights. ``score`` is the score itself.

    Raises:
        AsyncrlError: A verdict lacks a metric, none is named, or the step has fewer than two tokens.

    Source:
        Liu et al. 2026, arXiv:2601.05242.
    """
    if not reward_weights:
        raise AsyncrlError("gdpo compares metrics of the verdicts; name some in algorithm.reward_weights")
    combined = np.zeros(len(outcomes))
    for key, weight in reward_weights.items():

        def compared(group: list[Outcome], key: str = key) -> Floats:
            return standardized(np.array([_reward(outcome, key) for outcome in group], dtype=np.float64))

        combined += weight * per_group(outcomes, compared)
    return whitened(on_every_token(outcomes, combined), name="gdpo")


def _reward(outcome: Outcome, key: str) -> float:
    rewards = {"score": outcome.reward, **outcome.metrics}
    if key not in rewards:
        raise AsyncrlError(
            f"algorithm.reward_weights names {key!r}, but a verdict of group {outcome.group_id} has only "
            f"{', '.join(rewards)}; the reward function must return it"
        )
    return rewards[key]
