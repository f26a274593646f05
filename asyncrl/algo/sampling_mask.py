"""
Sampling masks: the token ids that were left in the distribution when each token was drawn.

    sampler    softmax ─ top-k, top-p ─▶ renormalised over the mask ─▶ token, log-prob
    trainer    logits  ─ the same mask ─▶ renormalised over it       ─▶ log-prob of the token

Top-p under the policy in training would leave other ids than top-p in the sampler, and the ratio would compare
distributions over different sets. With the sampler's mask both policies are renormalised over one set, so two equal
policies have a ratio of 1 and a KL of 0.

Source:
    DeepSeek-AI 2025, arXiv:2512.02556 ("keep sampling mask").
"""

from typing import NamedTuple

import torch
from torch import Tensor

REMOVED = -1e30
"""Logit of an id outside the mask: its probability is exactly 0. Minus infinity would make 0 * logit a NaN."""


class SamplingMask(NamedTuple):
    """Masks of N tokens with M ids in total."""

    counts: Tensor
    """Number of ids in the mask of each token, [N] int64; 0 leaves the whole vocabulary."""
    ids: Tensor
    """Token ids of all masks, [M] int64, mask after mask."""
    ends: list[int]
    """N + 1 boundaries of the masks in ``ids``, starting with 0; on the host, so that slicing waits for no device."""

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
