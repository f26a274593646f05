"""
What happened to the tokens of a step, gathered micro-batch by micro-batch.

Sums stay tensors and are read once, at the end: reading one waits for the device.
"""

from collections import Counter

import torch
from torch import Tensor

from asyncrl.algo.clipped import ClippedLoss
from asyncrl.trainer.batch import MicroBatch
from asyncrl.trainer.logprob_gap import LogprobGap


class Tally:
    """Metrics over the tokens that went through the model, one step's worth."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._shift_max: list[Tensor] = []
        self._gap = LogprobGap()
        self._counts = Counter({"trained_tokens": 0, "micro_batches": 0, "padded_tokens": 0})

    def add(
        self, batch: MicroBatch, logprobs: Tensor, clipped: ClippedLoss, loss: Tensor, kl_ref: Tensor | None
    ) -> None:
        """
        Count one micro-batch.

        Args:
            batch: What went in.
            logprobs: [N] under the policy before the step.
            clipped: What `clipped_loss` said of them.
            loss: [] share of the step's loss.
            kl_ref: [N] KL to the reference, if there is one.
        """
        if not logprobs.numel():
            return
        shift = (logprobs.detach() - batch.behavior_logprobs).abs()
        self._shift_max.append(shift.max())
        if batch.is_compared is not None:
            self._gap.add(shift, batch.is_compared)
        self._sum("loss", loss)
        self._sum("kl", -clipped.log_ratio)
        self._sum("clip_fraction", clipped.is_clipped)
        self._sum("dual_clip_fraction", clipped.is_dual_clipped)
        self._sum("log_ratio_abs_mean", shift)
        if kl_ref is not None:
            self._sum("kl_ref", kl_ref)
        self._counts.update(trained_tokens=logprobs.numel(), micro_batches=1, padded_tokens=batch.input_ids.numel())

    def metrics(self) -> dict[str, float]:
        """Means over trained tokens, save the log-prob gap; ``loss`` is a sum: the token weights already divide it."""
        tokens = max(self._counts["trained_tokens"], 1)
        sums = {name: float(total) for name, total in self._sums.items()}
        means = {name: total if name == "loss" else total / tokens for name, total in sums.items()}
        shift_max = float(torch.stack(self._shift_max).max()) if self._shift_max else 0.0
        counts = {name: float(count) for name, count in self._counts.items()}
        return {"loss": 0.0, **means, "log_ratio_abs_max": shift_max, **self._gap.metrics(), **counts}

    def _sum(self, name: str, values: Tensor) -> None:
        total = values.detach().sum(dtype=torch.float32)
        self._sums[name] = self._sums[name] + total if name in self._sums else total
