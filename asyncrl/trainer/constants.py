"""What the loss of a micro-batch depends on beside the policy in training: tokens laid end to end, on its device."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.algo.ragged import Ragged
from asyncrl.trainer.batch import TrainingSample
from asyncrl.trainer.columns import Column
from asyncrl.trainer.estimates import Estimates


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Constants:
    """Of N tokens."""

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MiniBatch:
    """The trajectories of one update, by their places in the step. What is [T] of each is the same on every rank."""

    samples: Mapping[int, TrainingSample]
    """This rank's."""
    estimates: Estimates
    weigh: Callable[[int], float]
    """Weight of a token, given how many of its trajectory count."""
    old_logprobs: Column | None
    """What ratios are against; None for the sampler's."""
    ref_logprobs: Column | None
    picked: Mapping[int, NDArray[np.bool_]] | None

    def constants(
        self, places: Sequence[int], is_compared: NDArray[np.bool_] | None, *, device: torch.device
    ) -> Constants:
        """
        Of one micro-batch.

        Args:
            places: Of its trajectories, which this rank has.
            is_compared: [N], as in `Constants`.
            device: Where the tensors go.
        """
        samples, estimates = [self.samples[place] for place in places], self.estimates

        def tensor(parts: Sequence[NDArray[np.generic]], dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.from_numpy(np.concatenate((np.zeros(0, np.float32), *parts))).to(device, dtype)

        def column(values: Column | None) -> Tensor | None:
            return None if values is None else tensor([values[place] for place in places])

        behavior = tensor([sample.behavior_logprobs for sample in samples])
        keep = None if estimates.keep is None else tensor([estimates.keep[place] for place in places], torch.bool)
        weights = tensor([np.full(estimates.size(place), self.weigh(estimates.length(place))) for place in places])
        old = column(self.old_logprobs)
        return Constants(
            sequences=Ragged([len(sample.completion_ids) for sample in samples], device=device),
            behavior_logprobs=behavior,
            old_logprobs=behavior if old is None else old,
            advantages=tensor([estimates.advantages[place] for place in places]),
            weights=weights if keep is None else weights * keep,
            importance=column(estimates.importance),
            keep=keep,
            ref_logprobs=column(self.ref_logprobs),
            is_selected=None if self.picked is None else tensor([self.picked[place] for place in places], torch.bool),
            is_compared=None if is_compared is None else torch.from_numpy(is_compared).to(device),
        )
