"""
Log-prob gap: difference between sampler and trainer on the same tokens under the same weights, in nats.

    completion   ▁▁▁▁▁▁▁▁▂▂▂▂▂▂▂▂▃▃▃▃▃▃▃▃
    written by      v3      v4      v5             in training: v4
    compared             ✓✓✓✓✓✓✓✓                  rollout.kv = "recompute"
                                                   rollout.kv = "keep": none, v4 read keys that v3 had computed
                                                   rollout.replay_routes: none, v3 chose the experts of its tokens

It measures the engine's numerical error alone. Tokens of other versions also differ because the policy has moved. With
top-p or top-k all tokens differ, because they cut the sampling distribution, which the trainer reproduces only with
``sampling.replay_mask``; without it nothing is compared.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.config.config import Config
from asyncrl.log import get_logger
from asyncrl.messages.trajectory import Span
from asyncrl.trainer.packing.trajectory import TrainingTrajectory

log = get_logger()


class Comparable:
    """Selects the tokens to compare. Logs a warning if the configuration allows no comparison."""

    def __init__(self, config: Config) -> None:
        self._mixes_versions = config.rollout.kv == "keep" or config.rollout.replay_routes
        self._is_reproduced = config.sampling.replay_mask or not config.sampling.sampling().is_truncated
        if not self._is_reproduced:
            log.warning(
                "logprob_gap.unmeasured",
                cause="sampling.top_p or top_k renormalises the recorded log-probs, which the trainer reproduces only "
                "with sampling.replay_mask",
            )

    def tokens(
        self, trajectories: Sequence[TrainingTrajectory], policy_version: int | None
    ) -> NDArray[np.bool_] | None:
        """Mark the tokens that ``policy_version``, the weights in training, wrote: [N], or None if there are none."""
        if not self._is_reproduced or policy_version is None:
            return None
        masks = [self._written(one.spans, policy_version, len(one.completion_ids)) for one in trajectories]
        mask = np.concatenate(masks)
        return mask if mask.any() else None

    def _written(self, spans: Sequence[Span], policy_version: int, num_tokens: int) -> NDArray[np.bool_]:
        mask = np.zeros(num_tokens, np.bool_)
        for span in spans[:1] if self._mixes_versions else spans:
            if span.policy_version == policy_version:
                mask[span.start : span.end] = True
        return mask


class GapTotal(NamedTuple):
    """Sum and maximum over the compared tokens, in nats."""

    sum: float
    highest: float
    num_tokens: float


class LogprobGap:
    """Accumulates the gap over the micro-batches of a step, on the device until `total` is called."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []
        """[3] for each micro-batch: sum, maximum, number of tokens."""

    def add(self, gap: Tensor, is_compared: Tensor) -> None:
        """Add one micro-batch: absolute differences [N] in nats, and the mask [N] of the compared tokens."""
        compared = torch.where(is_compared, gap, 0.0)
        self._parts.append(torch.stack((compared.sum(), compared.max(), is_compared.sum(dtype=torch.float32))))

    def total(self) -> GapTotal | None:
        """Totals of all micro-batches; None, not a gap of zero, if no token was compared."""
        if not self._parts:
            return None
        total, highest, tokens = torch.stack(self._parts).double().unbind(1)
        return GapTotal(float(total.sum()), float(highest.max()), float(tokens.sum()))
