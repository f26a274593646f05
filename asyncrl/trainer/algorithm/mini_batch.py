"""What the loss of an update depends on beside the model in training; cut into tensors a micro-batch at a time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.algo.ragged import Ragged
from asyncrl.errors import BrokenInvariant
from asyncrl.trainer.algorithm.estimates import Estimates
from asyncrl.trainer.packing.step import Step
from asyncrl.trainer.ranks.per_token import Column

F32 = torch.float32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossInputs:
    """What the policy's loss of N tokens depends on, laid end to end on the device."""

    sequences: Ragged
    behavior_logprobs: Tensor
    """[N] under the policy that sampled."""
    old_logprobs: Tensor
    """[N] what ratios are against."""
    advantages: Tensor
    """[N]."""
    weights: Tensor
    """[N] share of each token in the loss of the step."""
    importance: Tensor | None = None
    """[N] of decoupled correction; None for ones."""
    keep: Tensor | None = None
    """[N] bool, of decoupled correction; None where it rejects nothing."""
    ref_logprobs: Tensor | None = None
    """[N] if a KL to it is in the loss."""
    is_selected: Tensor | None = None
    """[N] bool, if the loss has a selection."""
    is_compared: Tensor | None = None
    """[N] bool, written by the very weights in training; None if no token was."""


class Values(NamedTuple):
    """What the critic's loss of N tokens depends on beside the critic."""

    old: Tensor
    """[N] as it said before the step."""
    targets: Tensor
    """[N] what it should have said."""
    keep: Tensor
    """[N] bool, the tokens that count."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MiniBatch:
    """The trajectories of one update, and what is known of them. What is [T] of each is the same on every rank."""

    step: Step
    places: Sequence[int]
    """Of its trajectories in the step."""
    estimates: Estimates
    weigh: Callable[[int], float]
    """Weight of a token, given how many of its trajectory count."""
    old_logprobs: Column | None
    """What ratios are against; None for the sampler's."""
    ref_logprobs: Column | None
    """Of the reference, if a KL to it is in the loss."""
    old_values: Column | None
    """The critic's, if there is one."""
    picked: Mapping[int, NDArray[np.bool_]] | None
    """Tokens that the loss treats apart, by place."""

    @property
    def taught(self) -> list[int]:
        """Places of those that have any advantage."""
        return [place for place in self.places if self.estimates.advantages[place].any()]

    @property
    def num_tokens(self) -> int:
        """That count; at least one, to divide by."""
        return max(sum(self.estimates.length(place) for place in self.places), 1)

    def constants(
        self, places: Sequence[int], is_compared: NDArray[np.bool_] | None, *, device: torch.device
    ) -> LossInputs:
        """
        Of one micro-batch.

        Args:
            places: Of its trajectories, which this rank has.
            is_compared: [N], as in `LossInputs`.
            device: Where the tensors go.
        """
        samples, estimates = self.step.of(places), self.estimates

        def column(values: Column | Mapping[int, NDArray[Any]] | None, dtype: torch.dtype = F32) -> Tensor | None:
            return None if values is None else _joined([values[place] for place in places], dtype, device)

        behavior = _joined([sample.behavior_logprobs for sample in samples], F32, device)
        weights = [np.full(estimates.size(place), self.weigh(estimates.length(place))) for place in places]
        keep = None if estimates.keep is None else self._keep(places, device)
        token_weights, old = _joined(weights, F32, device), column(self.old_logprobs)
        return LossInputs(
            sequences=Ragged([len(sample.completion_ids) for sample in samples], device=device),
            behavior_logprobs=behavior,
            old_logprobs=behavior if old is None else old,
            advantages=_joined([estimates.advantages[place] for place in places], F32, device),
            weights=token_weights if keep is None else token_weights * keep,
            importance=column(estimates.importance),
            keep=keep,
            ref_logprobs=column(self.ref_logprobs),
            is_selected=column(self.picked, torch.bool),
            is_compared=None if is_compared is None else torch.from_numpy(is_compared).to(device),
        )

    def values(self, places: Sequence[int], *, device: torch.device) -> Values:
        """
        Of one micro-batch, for the critic.

        Raises:
            BrokenInvariant: There is none.
        """
        if self.old_values is None or self.estimates.value_targets is None:
            raise BrokenInvariant("a critic is to be taught, but nobody asked it before the step")
        old, targets = (
            _joined([column[place] for place in places], F32, device)
            for column in (self.old_values, self.estimates.value_targets)
        )
        return Values(old, targets, self._keep(places, device))

    def _keep(self, places: Sequence[int], device: torch.device) -> Tensor:
        return _joined([self.estimates.kept(place) for place in places], torch.bool, device)


def _joined(parts: Sequence[NDArray[Any]], dtype: torch.dtype, device: torch.device) -> Tensor:
    """[N], of [T] of each trajectory."""
    return torch.from_numpy(np.concatenate((np.zeros(0, np.float32), *parts))).to(device, dtype)
