"""
Metrics of an update by token, over micro-batches and ranks, and the gap between the log-probs of sampler and trainer.

Sums stay tensors until the end, because reading one waits for the device.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.algo.aggregate import combined, effective_sample_size, log_sums
from asyncrl.algo.kl import k3
from asyncrl.config.config import Config
from asyncrl.log import get_logger
from asyncrl.messages.trajectory import Span
from asyncrl.trainer.algorithm.mini_batch import LossInputs, MicroBatchLoss
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.packing.step import TrainingTrajectory
from asyncrl.trainer.ranks.ranks import Ranks

# ── logprob gap ───────────────────────────────────────────────────────────────────────────────
# Log-prob gap: difference between sampler and trainer on the same tokens under the same weights, in nats.
#
#     completion   ▁▁▁▁▁▁▁▁▂▂▂▂▂▂▂▂▃▃▃▃▃▃▃▃
#     written by      v3      v4      v5             in training: v4
#     compared             ✓✓✓✓✓✓✓✓                  rollout.kv = "recompute"
#                                                    rollout.kv = "keep": none, v4 read keys that v3 had computed
#                                                    rollout.replay_routes: none, v3 chose the experts of its tokens
#
# It measures the engine's numerical error alone. Tokens of other versions also differ because the policy has moved.
# With top-p or top-k all tokens differ, because they cut the sampling distribution, which the trainer reproduces only
# with ``sampling.replay_mask``; without it nothing is compared.

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


# ── step metrics ──────────────────────────────────────────────────────────────────────────────

COUNTS = ("trained_tokens", "kept_tokens", "micro_batches", "packed_tokens")
"""``trained_tokens`` went through the model, and ``kept_tokens`` of them are in the loss: not rejected, not masked."""
SUMMED = (*COUNTS, "logprob_gap_tokens", "skipped", "skipped_empty", "critic_skipped")
"""Metrics of a step that are the sums of those of its updates."""
ESS = ("ess", "ess_sequence")
"""Effective sample sizes of the ratios, trainer to sampler, of tokens and of trajectories, before any correction."""


class _RankSums(Struct, frozen=True):
    """Sums, maxima and counts of one rank, before they are combined with those of the others."""

    sums: dict[str, float]
    num_tokens: dict[str, float]
    """Number of tokens by which each sum is divided."""
    highest: dict[str, float]
    ratios: list[list[float]]
    """[2, 3] `log_sums` of the ratios of tokens and of trajectories; empty without any."""


class StepMetrics:
    """Metrics over the tokens of one update."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._shift_max: list[Tensor] = []
        self._ratios: list[Tensor] = []
        """[2, 3] of each micro-batch."""
        self._gaps: list[Tensor] = []
        """[3] of each micro-batch with compared tokens: sum, maximum, and their number."""
        self._counts: Counter[str] = Counter()
        self._num_tokens: Counter[str] = Counter()

    def add(self, batch: MicroBatch, logprobs: Tensor, inputs: LossInputs, result: MicroBatchLoss) -> None:
        """Add one micro-batch; ``logprobs`` [N] are under the policy before the update."""
        if not logprobs.numel():
            return
        logprobs = logprobs.detach()
        log_ratio = logprobs - inputs.behavior_logprobs
        shift = log_ratio.abs()
        has_tokens = inputs.sequences.lengths > 0
        of_sequences = inputs.sequences.sum(log_ratio).masked_fill(~has_tokens, -torch.inf)
        num_sequences = has_tokens.sum(dtype=log_ratio.dtype)
        self._ratios.append(torch.stack((log_sums(log_ratio), log_sums(of_sequences, num_sequences))))
        self._shift_max.append(shift.max())
        if inputs.is_compared is not None:
            compared = torch.where(inputs.is_compared, shift, 0.0)
            num_compared = inputs.is_compared.sum(dtype=torch.float32)
            self._gaps.append(torch.stack((compared.sum(), compared.max(), num_compared)))
        self._sum("loss", result.loss)
        self._sum("kept_tokens", torch.ones_like(shift) if result.keep is None else result.keep)
        self._mean("kl", k3(inputs.behavior_logprobs, logprobs))
        self._mean("log_ratio_abs_mean", shift)
        for name, values in result.metrics.items():
            if values.numel():
                self._mean(name, values)
        self._counts.update(trained_tokens=logprobs.numel(), micro_batches=1, packed_tokens=batch.num_packed)

    def metrics(self, ranks: Ranks) -> dict[str, float]:
        """
        Combine all ranks: means over tokens, maxima and counts. Collective.

        ``loss`` is a sum, because the token weights already divide it.
        """
        encoded = ranks.all_gather(msgspec.msgpack.encode(self._rank_sums()))
        parts = [msgspec.msgpack.decode(one, type=_RankSums) for one in encoded]
        sums = _added([part.sums for part in parts])
        num_tokens = _added([part.num_tokens for part in parts])
        names = sorted({name for part in parts for name in part.highest})
        highest = {name: max(part.highest.get(name, 0.0) for part in parts) for name in names}
        counts = dict.fromkeys(COUNTS, 0.0) | {name: sums.pop(name) for name in COUNTS if name in sums}
        means = {name: total / num_tokens[name] if name in num_tokens else total for name, total in sums.items()}
        gap = {"logprob_gap_tokens": num_tokens["logprob_gap_mean"]} if "logprob_gap_mean" in num_tokens else {}
        ratios, ess = [part.ratios for part in parts if part.ratios], dict[str, float]()
        if ratios:
            sizes = effective_sample_size(combined(torch.tensor(ratios, dtype=torch.float64)))
            ess = dict(zip(ESS, sizes.tolist(), strict=True))
        return {"loss": 0.0, **means, **highest, **gap, **counts, **ess}

    def _rank_sums(self) -> _RankSums:
        sums = {name: float(total) for name, total in self._sums.items()}
        sums |= {name: float(count) for name, count in self._counts.items()}
        num_tokens = {name: float(number) for name, number in self._num_tokens.items()}
        highest = {"log_ratio_abs_max": float(torch.stack(self._shift_max).max()) if self._shift_max else 0.0}
        if self._gaps:  # else there are no metrics of a gap, and not one of zero
            total, largest, tokens = torch.stack(self._gaps).double().unbind(1)
            sums["logprob_gap_mean"], num_tokens["logprob_gap_mean"] = float(total.sum()), float(tokens.sum())
            highest["logprob_gap_max"] = float(largest.max())
        ratios = combined(torch.stack(self._ratios).double()).tolist() if self._ratios else []
        return _RankSums(sums, num_tokens, highest, ratios)

    def _mean(self, name: str, values: Tensor) -> None:
        self._sum(name, values)
        self._num_tokens[name] += values.numel()

    def _sum(self, name: str, values: Tensor) -> None:
        total = values.detach().sum(dtype=torch.float32)
        self._sums[name] = self._sums[name] + total if name in self._sums else total


def _added(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(part.get(name, 0.0) for part in parts) for name in names}


def merged(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """
    Metrics of a step from those of its updates.

    Counts and skipped updates are summed, maxima are the highest, everything else is the mean over updates.
    """
    found: dict[str, float] = {}
    for name in dict.fromkeys(name for update in updates for name in update):
        values = [update[name] for update in updates if name in update]
        if name in SUMMED:
            found[name] = sum(values)
        else:
            found[name] = max(values) if name.endswith("_max") else sum(values) / len(values)
    return found
