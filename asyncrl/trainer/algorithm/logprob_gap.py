"""
How far sampler and trainer are apart on the same tokens under the same weights: the engine's error, and no more.

    completion   ▁▁▁▁▁▁▁▁▂▂▂▂▂▂▂▂▃▃▃▃▃▃▃▃
    written by      v3      v4      v5             in training: v4
    compared             ✓✓✓✓✓✓✓✓                  rollout.kv = "recompute"
                                                   rollout.kv = "keep": none, v4 read keys that v3 had computed

Tokens of other versions differ because the policy has moved. So do all tokens if top-p or top-k cut the distribution
they were drawn from, which the trainer does not know; then nothing is compared.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.config.sections import Config
from asyncrl.messages import Span
from asyncrl.trainer.packing.batch import TrainingTrajectory

log = structlog.get_logger()


class Comparable:
    """
    Which tokens can be compared.

    Args:
        config: Its ``sampling`` and ``rollout.kv`` are read. Says once if nothing can be.
    """

    def __init__(self, config: Config) -> None:
        self._reads_old_keys = config.rollout.kv == "keep"
        self._is_whole = config.sampling.top_p == 1 and config.sampling.top_k == 0
        if not self._is_whole:
            log.warning(
                "logprob_gap.unmeasured",
                cause="sampling.top_p or top_k renormalises what is recorded, which the trainer does not reproduce",
            )

    def tokens(self, samples: Sequence[TrainingTrajectory], policy_version: int | None) -> NDArray[np.bool_] | None:
        """
        [N] True where the weights in training wrote the token; None if they wrote none.

        Args:
            samples: Whose completions have N tokens together.
            policy_version: What the weights were published as; None if they were not.
        """
        if not self._is_whole or policy_version is None:
            return None
        masks = [self._written(sample.spans, policy_version, len(sample.completion_ids)) for sample in samples]
        mask = np.concatenate(masks)
        return mask if mask.any() else None

    def _written(self, spans: Sequence[Span], policy_version: int, num_tokens: int) -> NDArray[np.bool_]:
        mask = np.zeros(num_tokens, np.bool_)
        for span in spans[:1] if self._reads_old_keys else spans:
            if span.policy_version == policy_version:
                mask[span.start : span.end] = True
        return mask


class Total(NamedTuple):
    """Of the compared tokens."""

    sum: float
    """Nats."""
    highest: float
    num_tokens: float


class LogprobGap:
    """Sum and maximum over the compared tokens of a step. Stays on the device until it is asked."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []
        """[3] of each micro-batch: sum, maximum, number of tokens."""

    def add(self, gap: Tensor, is_compared: Tensor) -> None:
        """
        Count one micro-batch.

        Args:
            gap: [N] absolute differences, nats.
            is_compared: [N] bool.
        """
        compared = torch.where(is_compared, gap, 0.0)
        self._parts.append(torch.stack((compared.sum(), compared.max(), is_compared.sum(dtype=torch.float32))))

    def total(self) -> Total | None:
        """None if no token was compared: that is not a gap of zero."""
        if not self._parts:
            return None
        total, highest, tokens = torch.stack(self._parts).double().unbind(1)
        return Total(float(total.sum()), float(highest.max()), float(tokens.sum()))
