"""
A loss and an advantage estimator of your own, by path in the run file.

    asyncrl toy step-sums cache/step-sums                          (once: the model and its data)
    asyncrl run conf/quickstart.toml --set algorithm.loss=examples/own_loss.py:one_sided \\
        --set algorithm.advantage=examples/own_loss.py:above_median --set algorithm.clip_high=0.3 \\
        --set algorithm.loss_options.negative_weight=0.5

Keyword arguments with the name of a setting of ``[algorithm]`` get its value; the others are options, which
``algorithm.loss_options`` and ``algorithm.advantage_options`` set. What neither function takes is refused.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from asyncrl.algo.loss_tokens import Tokens
from asyncrl.algo.outcomes import Advantages, Outcome


def one_sided(tokens: Tokens, *, clip_high: float = 0.2, negative_weight: float = 1.0) -> Tensor:
    """
    Policy gradient with a ratio that is clipped from above only.

    Args:
        tokens: N completion tokens of a micro-batch: ``logprobs``, ``old_logprobs`` and ``advantages``, each [N].
        clip_high: Largest increase of the ratio that still counts, the setting ``algorithm.clip_high``.
        negative_weight: Weight of tokens with a negative advantage, an option of this function.

    Returns:
        [N] losses, differentiable in ``tokens.logprobs``. Aggregation over tokens follows ``algorithm.aggregation``.
    """
    ratio = (tokens.logprobs - tokens.old_logprobs).exp()
    weights = torch.where(tokens.advantages < 0, negative_weight, 1.0)
    return -weights * tokens.advantages * ratio.clamp(max=1 + clip_high)


def above_median(outcomes: Sequence[Outcome]) -> Advantages:
    """
    Reward minus the median reward of the group, the same for every token of a trajectory.

    Args:
        outcomes: All trajectories of a step, groups adjacent.

    Returns:
        Advantages [T] of each trajectory, in the order of ``outcomes``.
    """
    medians = {
        group_id: float(np.median([outcome.reward for outcome in outcomes if outcome.group_id == group_id]))
        for group_id in {outcome.group_id for outcome in outcomes}
    }
    return [np.full(outcome.length, outcome.reward - medians[outcome.group_id]) for outcome in outcomes]
