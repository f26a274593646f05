"""Inputs of the losses of one update, cut into tensors one micro-batch at a time."""

from collections.abc import Mapping, Sequence
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
from asyncrl.trainer.ranks.per_token import PerToken

F32 = torch.float32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossInputs:
    """
    Constants of the policy loss for the N completion tokens of a micro-batch.

    Tensors are [N] on the device, float32 or bool; log-probs in nats.
    """

    sequences: Ragged
    behavior_logprobs: Tensor
    old_logprobs: Tensor
    """Denominator of the ratio."""
    advantages: Tensor
    weights: Tensor
    """Weight of each token in the loss of the step."""
    importance: Tensor | None = None
    """Importance weights of decoupled correction; None for ones."""
    keep: Tensor | None = None
    """False where decoupled correction rejects; None if it rejects nothing."""
    ref_logprobs: Tensor | None = None
    """Set if the loss has a KL to the reference."""
    is_selected: Tensor | None = None
    """Set if the loss has a selection."""
    is_compared: Tensor | None = None
    """True for tokens that the weights in training wrote; None if there are none."""


class ValueInputs(NamedTuple):
    """Constants of the value loss, [N] each: values before the step, their targets, and a mask of kept tokens."""

    old_values: Tensor
    targets: Tensor
    keep: Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MiniBatch:
    """Trajectories of one update. Per-token numbers cover the whole step and are the same on every rank."""

    step: Step
    places: Sequence[int]
    """Places of its trajectories in the step."""
    estimates: Estimates
    token_weights: Mapping[int, float]
    """Weight in the loss of a token of the trajectory at each place."""
    old_logprobs: PerToken | None
    """Denominator of the ratio; None for the behavior log-probs."""
    ref_logprobs: PerToken | None
    """Log-probs under the reference, if the loss has a KL to it."""
    old_values: PerToken | None
    """Values before the step, if there is a critic."""
    selected: Mapping[int, NDArray[np.bool_]] | None
    """[T] by place, if the loss has a selection."""

    @property
    def with_advantage(self) -> list[int]:
        """Places of the trajectories with a non-zero advantage."""
        return [place for place in self.places if self.estimates.advantages[place].any()]

    @property
    def num_kept(self) -> int:
        """Tokens of all its trajectories that decoupled correction keeps."""
        return sum(self.estimates.num_kept(place) for place in self.places)

    def loss_inputs(
        self, places: Sequence[int], is_compared: NDArray[np.bool_] | None, *, device: torch.device
    ) -> LossInputs:
        """Inputs of the policy loss for one micro-batch of this rank's trajectories."""
        trajectories, estimates = self.step.at(places), self.estimates

        def tensor(values: PerToken | Mapping[int, NDArray[Any]] | None, dtype: torch.dtype = F32) -> Tensor | None:
            return None if values is None else _joined([values[place] for place in places], dtype, device)

        behavior = _joined([one.behavior_logprobs for one in trajectories], F32, device)
        weights = [np.full(estimates.num_tokens(place), self.token_weights[place]) for place in places]
        keep = None if estimates.keep is None else self._keep(places, device)
        token_weights, old = _joined(weights, F32, device), tensor(self.old_logprobs)
        return LossInputs(
            sequences=Ragged([len(one.completion_ids) for one in trajectories], device=device),
            behavior_logprobs=behavior,
            old_logprobs=behavior if old is None else old,
            advantages=_joined([estimates.advantages[place] for place in places], F32, device),
            weights=token_weights if keep is None else token_weights * keep,
            importance=tensor(estimates.importance),
            keep=keep,
            ref_logprobs=tensor(self.ref_logprobs),
            is_selected=tensor(self.selected, torch.bool),
            is_compared=None if is_compared is None else torch.from_numpy(is_compared).to(device),
        )

    def value_inputs(self, places: Sequence[int], *, device: torch.device) -> ValueInputs:
        """Inputs of the value loss for one micro-batch; the step must have been scored by a critic."""
        if self.old_values is None or self.estimates.value_targets is None:
            raise BrokenInvariant("value loss requested, but no values were computed before the step")
        old, targets = (
            _joined([values[place] for place in places], F32, device)
            for values in (self.old_values, self.estimates.value_targets)
        )
        return ValueInputs(old, targets, self._keep(places, device))

    def _keep(self, places: Sequence[int], device: torch.device) -> Tensor:
        return _joined([self.estimates.kept(place) for place in places], torch.bool, device)


def _joined(parts: Sequence[NDArray[Any]], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Join [T] of each trajectory to [N]; no parts give [0]."""
    return torch.from_numpy(np.concatenate((np.zeros(0, np.float32), *parts))).to(device, dtype)
