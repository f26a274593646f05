"""
Sampling masks: the token ids that were left in the distribution when each token was drawn.

    sampler    softmax ─ top-k, top-p ─▶ renormalised over the mask ─▶ token, log-prob
    trainer    logits  ─ the same mask ─▶ renormalised over it       ─▶ log-prob of the token

Top-p of the policy in training would leave other ids than that of the sampler, and the ratio of the two would compare
distributions over different sets. With the sampler's mask each policy is renormalised over one set, so two equal
policies have a ratio of 1 and a KL of 0.

Source:
    DeepSeek-AI 2025, arXiv:2512.02556 ("keep sampling mask").
"""

from typing import NamedTuple

import torch
from torch import Tensor

REMOVED = -1e30
"""Logit of an id that cannot be drawn: its probability is exactly 0. Minus infinity times 0 would not be."""


class SamplingMask(NamedTuple):
    """Masks of N tokens with M ids in total."""

    counts: Tensor
    """[N] int64 ids in the mask of each token; 0 leaves the whole vocabulary."""
    ids: Tensor
    """[M] int64 token ids, token after token."""
    ends: list[int]
    """N + 1 boundaries of the masks in ``ids``, starting with 0; on the host, so that cutting waits for no device."""

    def apply(self, logits: Tensor, rows: slice) -> Tensor:
        """Set the logits [n, V] of the tokens ``rows`` to `REMOVED` outside their masks, in place."""
        start, end = self.ends[rows.start], self.ends[min(rows.stop, len(self.ends) - 1)]
        if start == end:
            return logits
        counts = self.counts[rows]
        row = torch.arange(len(logits), device=logits.device).repeat_interleave(counts, output_size=end - start)
        left = row * logits.shape[1] + self.ids[start:end]
        flat = logits.view(-1)
        values = flat[left]
        logits.masked_fill_((counts > 0)[:, None], REMOVED)
        flat[left] = values
        return logits
