"""Separate normalization of several rewards, so that the one with the largest scale does not dominate."""

from collections.abc import Mapping, Sequence

import numpy as np

from asyncrl.algo.advantages.group_baselines import standardized
from asyncrl.algo.advantages.groups import on_every_token, per_group
from asyncrl.algo.advantages.whiten import whitened
from asyncrl.algo.outcomes import Advantages, Floats, Outcome
from asyncrl.errors import AsyncrlError


def gdpo(outcomes: Sequence[Outcome], *, reward_weights: Mapping[str, float]) -> Advantages:
    """
    Normalize each reward over its group, sum with weights, whiten over the step.

        A_i^k = (r_i^k - mean(r^k)) / (std(r^k) + 1e-6),    A = whiten(sum_k w_k A^k)

    Reads metrics of the verdicts; penalties on tokens have no effect.

    Args:
        reward_weights: Weights of metrics by name; ``reward`` is the reward of the verdict.

    Source:
        Liu et al. 2026, arXiv:2601.05242.
    """
    if not reward_weights:
        raise AsyncrlError("gdpo compares metrics of the verdicts; name some in algorithm.reward_weights")
    combined = np.zeros(len(outcomes))
    for key, weight in reward_weights.items():

        def normalized(group: list[Outcome], key: str = key) -> Floats:
            return standardized(np.array([_reward(outcome, key) for outcome in group], dtype=np.float64))

        combined += weight * per_group(outcomes, normalized)
    return whitened(on_every_token(outcomes, combined))


def _reward(outcome: Outcome, key: str) -> float:
    rewards = {**outcome.metrics, "reward": outcome.reward}
    if key not in rewards:
        raise AsyncrlError(
            f"algorithm.reward_weights names {key!r}, but a verdict of group {outcome.group_id} has only "
            f"{', '.join(rewards)}; the reward function must return it"
        )
    return rewards[key]
