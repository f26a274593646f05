"""Off-policy correction as configured, for a step or a micro-batch."""

from functools import reduce
from operator import and_
from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.algo.correction.metrics import importance_metrics, mismatch_metrics, rejection_metrics
from asyncrl.algo.correction.rejection import kept
from asyncrl.algo.correction.weights import importance_weights
from asyncrl.algo.ragged import Ragged
from asyncrl.config.correction import resolved, thresholds
from asyncrl.config.sections.algorithm import Correction


class Corrected(NamedTuple):
    """Weights and mask of N tokens. No gradient."""

    weights: Tensor | None
    """[N] factors of the losses; None without importance weighting."""
    keep: Tensor | None
    """[N] bool, False for tokens removed from the loss; None without rejection."""


class Correct:
    """
    Compares trainer and sampler on the same tokens; raises `ConfigError` for an invalid correction.

    In decoupled mode call it once with the whole step, in bypass mode with each micro-batch. Only normalized weights
    depend on the other tokens of the call.
    """

    def __init__(self, correction: Correction) -> None:
        self._importance, self._rejections = thresholds(resolved(correction))

    @torch.no_grad()
    def __call__(self, logprobs: Tensor, behavior_logprobs: Tensor, sequences: Ragged) -> Corrected:
        """
        Weights and mask of the tokens.

        Args:
            logprobs: [N] under the trainer's policy, at the start of the step (decoupled) or now (bypass), nats.
            behavior_logprobs: [N] under the policy that sampled, nats.
            sequences: Sequences of the N tokens, on the same device.
        """
        log_ratio = logprobs - behavior_logprobs
        weights = importance_weights(log_ratio, sequences, self._importance) if self._importance else None
        keeps = [kept(log_ratio, sequences, rejection) for rejection in self._rejections]
        return Corrected(weights, reduce(and_, keeps) if keeps else None)

    @torch.no_grad()
    def metrics(self, logprobs: Tensor, behavior_logprobs: Tensor, sequences: Ragged) -> dict[str, float]:
        """
        Metrics of the divergence between the policies and of the correction; empty without tokens.

        Arguments are those of a call, for the whole step and on the host.
        """
        if not len(logprobs):
            return {}
        trainer, sampler = logprobs.double(), behavior_logprobs.double()
        found = mismatch_metrics(trainer, sampler, sequences)
        if self._importance:
            found |= importance_metrics(trainer - sampler, sequences, self._importance)
        if self._rejections:
            found |= rejection_metrics(trainer - sampler, sequences, self._rejections)
        return found
