"""
What happened to the tokens of a step, gathered micro-batch by micro-batch and rank by rank.

Sums stay tensors and are read once, at the end: reading one waits for the device.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import torch
from msgspec import Struct
from torch import Tensor

from asyncrl.trainer.algorithm.logprob_gap import LogprobGap
from asyncrl.trainer.algorithm.mini_batch import LossInputs
from asyncrl.trainer.algorithm.objective import Parts
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.ranks.ranks import Ranks

COUNTS = ("trained_tokens", "micro_batches", "packed_tokens")


class _Counted(Struct, frozen=True):
    """One rank's."""

    sums: dict[str, float]
    numbers: dict[str, float]
    """Of tokens in each sum that is to be a mean."""
    highest: dict[str, float]


class StepMetrics:
    """Metrics over the tokens that went through the model, one step's worth."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._shift_max: list[Tensor] = []
        self._gap = LogprobGap()
        self._counts: Counter[str] = Counter()
        self._numbers: Counter[str] = Counter()

    def add(self, batch: MicroBatch, logprobs: Tensor, constants: LossInputs, parts: Parts) -> None:
        """
        Count one micro-batch.

        Args:
            batch: What went in.
            logprobs: [N] under the policy before the update.
            constants: What it was compared with.
            parts: What came of it.
        """
        if not logprobs.numel():
            return
        logprobs = logprobs.detach()
        shift = (logprobs - constants.behavior_logprobs).abs()
        self._shift_max.append(shift.max())
        if constants.is_compared is not None:
            self._gap.add(shift, constants.is_compared)
        self._sum("loss", parts.loss)
        self._mean("kl", constants.old_logprobs - logprobs)
        self._mean("log_ratio_abs_mean", shift)
        for name, values in parts.metrics.items():
            if values.numel():
                self._mean(name, values)
        self._counts.update(trained_tokens=logprobs.numel(), micro_batches=1, packed_tokens=batch.input_ids.numel())

    def metrics(self, ranks: Ranks) -> dict[str, float]:
        """
        Means over the tokens of all ranks; ``loss`` is a sum: the token weights already divide it. Collective.
        """
        said = ranks.gather(msgspec.msgpack.encode(self._counted()))
        counted = [msgspec.msgpack.decode(one, type=_Counted) for one in said]
        sums = _added([one.sums for one in counted])
        numbers = _added([one.numbers for one in counted])
        highest = {name: max(one.highest.get(name, 0.0) for one in counted) for name in _names(counted)}
        counts = dict.fromkeys(COUNTS, 0.0) | {name: sums.pop(name) for name in COUNTS if name in sums}
        means = {name: total / numbers[name] if name in numbers else total for name, total in sums.items()}
        gap = {"logprob_gap_tokens": numbers["logprob_gap_mean"]} if "logprob_gap_mean" in numbers else {}
        return {"loss": 0.0, **means, **highest, **gap, **counts}

    def _counted(self) -> _Counted:
        sums = {name: float(total) for name, total in self._sums.items()}
        sums |= {name: float(count) for name, count in self._counts.items()}
        numbers = {name: float(number) for name, number in self._numbers.items()}
        highest = {"log_ratio_abs_max": float(torch.stack(self._shift_max).max()) if self._shift_max else 0.0}
        if total := self._gap.total():
            sums["logprob_gap_mean"], numbers["logprob_gap_mean"] = total.sum, total.num_tokens
            highest["logprob_gap_max"] = total.highest
        return _Counted(sums, numbers, highest)

    def _mean(self, name: str, values: Tensor) -> None:
        self._sum(name, values)
        self._numbers[name] += values.numel()

    def _sum(self, name: str, values: Tensor) -> None:
        total = values.detach().sum(dtype=torch.float32)
        self._sums[name] = self._sums[name] + total if name in self._sums else total


def _names(counted: Sequence[_Counted]) -> list[str]:
    return sorted({name for one in counted for name in one.highest})


def _added(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(part.get(name, 0.0) for part in parts) for name in names}


def merged(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """
    The metrics of a step of several updates.

    Counts and skipped updates are added up, maxima are the highest, everything else is the mean over the updates.
    """
    names = {name: None for update in updates for name in update}
    return {name: _merge(name, [update[name] for update in updates if name in update]) for name in names}


def _merge(name: str, values: list[float]) -> float:
    if name in (*COUNTS, "logprob_gap_tokens", "skipped", "critic_skipped"):
        return sum(values)
    if name.endswith("_max"):
        return max(values)
    return sum(values) / len(values)
