"""A correction as configured, for any piece of a step."""

from functools import reduce
from operator import and_
from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.algo.correction.metrics import importance_metrics, mismatch_metrics, rejection_metrics
from asyncrl.algo.correction.rejection import kept
from asyncrl.algo.correction.weights import importance_weights
from asyncrl.algo.ragged import Ragged
from asyncrl.config.presets import resolved
from asyncrl.config.sections import Correction
from asyncrl.config.thresholds import thresholds


class Corrected(NamedTuple):
    """What becomes of the tokens. No gradient."""

    weights: Tensor | None
    """[N] factors of the losses; None for one everywhere."""
    keep: Tensor | None
    """[N] bool, False for what is left out of the loss; None if nothing may be."""


class Correct:
    """
    Compares two policies on the same tokens.

    In decoupled mode call it once, with the whole step; in bypass mode with each micro-batch. Only normalised weights
    depend on what else there is.

    Args:
        correction: With a preset or without.

    Raises:
        ConfigError: It cannot be understood.
    """

    def __init__(self, correction: Correction) -> None:
        self._importance, self._rejections = thresholds(resolved(correction))

    @torch.no_grad()
    def __call__(self, logprobs: Tensor, behavior_logprobs: Tensor, sequences: Ragged) -> Corrected:
        """
        Weigh and reject.

        Args:
            logprobs: [N] under the trainer's policy: decoupled, as the step began; bypass, as it is now. Nats.
            behavior_logprobs: [N] under the policy that sampled, nats.
            sequences: Those of the N tokens, on the same device.
        """
        log_ratio = logprobs - behavior_logprobs
        weights = importance_weights(log_ratio, sequences, self._importance) if self._importance else None
        keeps = [kept(log_ratio, sequences, rejection) for rejection in self._rejections]
        return Corrected(weights, reduce(and_, keeps) if keeps else None)

    @torch.no_grad()
    def metrics(self, logprobs: Tensor, behavior_logprobs: Tensor, sequences: Ragged) -> dict[str, float]:
        """
        How far the policies are apart, and what is done about it; empty without tokens.

        Args:
            logprobs: [N] of the whole step, as in a call, on the host.
            behavior_logprobs: [N].
            sequences: All of the step.
        """
        if not len(logprobs):
            return {}
        ours, theirs = logprobs.double(), behavior_logprobs.double()
        found = mismatch_metrics(ours, theirs, sequences)
        if self._importance:
            found |= importance_metrics(ours - theirs, sequences, self._importance)
        if self._rejections:
            found |= rejection_metrics(ours - theirs, sequences, self._rejections)
        return found
