"""Off-policy correction as configured, for a step or a micro-batch."""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_

import torch
from torch import Tensor

from asyncrl.algo.aggregate import Ragged
from asyncrl.config.correction import Importance, Rejection, resolved, thresholds
from asyncrl.config.sections.algorithm import Correction

# ── weights ───────────────────────────────────────────────────────────────────────────────────
# Importance weights of tokens sampled by another policy than the one in training.
#
#     truncated   min(w, C)
#     band        w where low ≤ w ≤ high, else 0    (IcePop)

LIMIT = 20.0
"""Bound of log-ratios, nats: e²⁰ is half a billion, and its square is finite in float32."""

SMALLEST_MEAN = 1e-8
"""Weights are not divided by a smaller mean: a band has dropped all of them."""


def importance_weights(log_ratio: Tensor, sequences: Ragged, importance: Importance) -> Tensor:
    """
    [N] weight of each token, equal within a sequence if ``importance.level`` is ``sequence``.

    Args:
        log_ratio: [N] trainer to sampler, nats. Without gradient.
        sequences: Sequences of the N tokens; with ``importance.normalize`` all those of the step.
    """
    weights = bounded(unbounded(log_ratio, sequences, importance), importance)
    return weights / normalizer(weights, sequences, importance) if importance.normalize else weights


def unbounded(log_ratio: Tensor, sequences: Ragged, importance: Importance) -> Tensor:
    """[N] ratios of tokens, or of their sequences, before bounds."""
    if importance.level == "sequence":
        log_ratio = sequences.spread(sequences.sum(log_ratio))
    return log_ratio.clamp(-LIMIT, LIMIT).exp()


def bounded(weights: Tensor, importance: Importance) -> Tensor:
    """[N] weights clipped to the upper bound, or zero outside the band."""
    if importance.low is None:
        return weights.clamp(max=importance.high)
    is_outside = (weights < importance.low) | (weights > importance.high)
    return weights.masked_fill(is_outside, 0.0)


def normalizer(weights: Tensor, sequences: Ragged, importance: Importance) -> Tensor:
    """[] mean over tokens, or over nonempty sequences for sequence weights; 1 if it is nearly zero."""
    if importance.level == "sequence":
        mean = sequences.mean(weights).sum() / (sequences.lengths > 0).sum().clamp(min=1)
    else:
        mean = weights.sum() / max(len(weights), 1)
    return torch.where(mean > SMALLEST_MEAN, mean, torch.ones_like(mean))


# ── rejection ─────────────────────────────────────────────────────────────────────────────────
# Rejection of tokens and sequences that are too far from the policy in training.

DIVERGENCES: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": torch.neg,
    "k2": lambda log_ratio: log_ratio.square() / 2,
    "k3": lambda log_ratio: log_ratio.expm1() - log_ratio,
}
"""Divergence of the sampler from the trainer, estimated on one token. k1 may be negative."""

OVER_SEQUENCE = {"seq_sum": Ragged.sum, "seq_mean": Ragged.mean, "seq_max": Ragged.max}


def kept(log_ratio: Tensor, sequences: Ragged, rejection: Rejection) -> Tensor:
    """
    [N] bool: tokens that one rejection keeps in the loss; equal within a sequence unless the rejection is per token.

    A token whose divergence is NaN is kept, so that the error reaches the loss.

    Args:
        log_ratio: [N] trainer to sampler, nats. Without gradient.
    """
    measured = divergence(log_ratio, sequences, rejection)
    is_kept = ~((measured < rejection.low) | (measured > rejection.high))
    return is_kept if rejection.scope == "token" else sequences.spread(is_kept)


def divergence(log_ratio: Tensor, sequences: Ragged, rejection: Rejection) -> Tensor:
    """Divergence to compare with the threshold: [N] of tokens or [S] of sequences."""
    of_tokens = DIVERGENCES[rejection.divergence](log_ratio.clamp(-LIMIT, LIMIT))
    return of_tokens if rejection.scope == "token" else OVER_SEQUENCE[rejection.scope](sequences, of_tokens)


# ── metrics ───────────────────────────────────────────────────────────────────────────────────
# Metrics of the divergence between sampler and trainer and of its correction. Names are verl's, without its prefix.
#
# They are computed over a whole step, because most of them are not sums over parts. Means are over tokens, or over
# sequences with tokens if the name contains ``seq`` or ``ppl``.


def mismatch_metrics(logprobs: Tensor, behavior_logprobs: Tensor, sequences: Ragged) -> dict[str, float]:
    """
    Divergence of the two policies on the sampled tokens.

    ``kl`` and ``k3_kl`` both estimate KL(sampler ‖ trainer); ``chi2_token`` and ``chi2_seq`` estimate the variance of
    importance weights of tokens and of sequences. ``ppl`` is the perplexity of a sequence.

    Args:
        logprobs: [N] under the trainer's policy, nats. N > 0 tokens of the whole step.
        behavior_logprobs: [N] under the policy that sampled, nats.
    """
    log_ratio = logprobs - behavior_logprobs
    training, rollout = (-_nonempty(sequences.mean(values), sequences) for values in (logprobs, behavior_logprobs))
    difference = training - rollout
    sequence_ratio = _nonempty(sequences.sum(log_ratio), sequences)
    return _floats(
        {
            "training_ppl": training.exp().mean(),
            "training_log_ppl": training.mean(),
            "rollout_ppl": rollout.exp().mean(),
            "rollout_log_ppl": rollout.mean(),
            "log_ppl_diff": difference.mean(),
            "log_ppl_abs_diff": difference.abs().mean(),
            "log_ppl_diff_max": difference.max(),
            "log_ppl_diff_min": difference.min(),
            "ppl_ratio": difference.exp().mean(),
            "kl": -log_ratio.mean(),
            "k3_kl": (log_ratio.expm1() - log_ratio).mean(),
            "chi2_token": (2 * log_ratio.clamp(-LIMIT, LIMIT)).expm1().mean(),
            "chi2_seq": (2 * sequence_ratio.clamp(-LIMIT, LIMIT)).expm1().mean(),
        }
    )


def importance_metrics(log_ratio: Tensor, sequences: Ragged, importance: Importance) -> dict[str, float]:
    """
    Statistics of bounded importance weights before normalization, and of the unbounded ratios outside the bounds.

    ``eff_sample_size`` is the effective sample size of the weights as a share of the tokens: 1 at best.

    Args:
        log_ratio: [N] trainer to sampler, nats. N > 0.
    """
    ratios = unbounded(log_ratio, sequences, importance)
    weights = bounded(ratios, importance)
    of_sequences, ratio_of_sequences = (_nonempty(sequences.mean(w), sequences) for w in (weights, ratios))
    is_of_sequences = importance.level == "sequence"
    compared = ratio_of_sequences if is_of_sequences else ratios
    extreme = ratio_of_sequences if is_of_sequences else weights
    low = 1 / importance.high if importance.low is None else importance.low
    square = weights.square().mean()
    found = {
        "rollout_is_mean": weights.mean(),
        "rollout_is_std": weights.std(correction=0),
        "rollout_is_max": extreme.max(),
        "rollout_is_min": extreme.min(),
        "rollout_is_eff_sample_size": weights.mean().square() / square if square else square,
        "rollout_is_ratio_fraction_high": _share(compared > importance.high),
        "rollout_is_ratio_fraction_low": _share(compared < low),
        "rollout_is_seq_fraction_high": _share(ratio_of_sequences > importance.high),
        "rollout_is_seq_fraction_low": _share(ratio_of_sequences < low),
    }
    found |= _spread("rollout_is_seq", of_sequences, ideal=1.0)
    if importance.low is not None:
        found["rollout_is_oob_ratio"] = _share((ratios < low) | (ratios > importance.high))
    if importance.normalize:
        found["rollout_is_batch_norm_factor"] = normalizer(weights, sequences, importance)
    return _floats(found)


def rejection_metrics(log_ratio: Tensor, sequences: Ragged, rejections: Sequence[Rejection]) -> dict[str, float]:
    """
    Statistics of the divergence and of the rejected tokens, for each rejection and for all together.

    ``masked_fraction`` is the share of rejected tokens, ``seq_masked_fraction`` that of sequences with any of them.

    Args:
        log_ratio: [N] trainer to sampler, nats. N > 0.
        rejections: At least one.
    """
    found: dict[str, Tensor] = {}
    keeps = []
    for rejection in rejections:
        name = f"rollout_rs_{rejection.option}"
        keeps.append(kept(log_ratio, sequences, rejection))
        found |= _measured(name, divergence(log_ratio, sequences, rejection), sequences, rejection)
        found |= _masked(name, keeps[-1], sequences)
    return _floats(found | _masked("rollout_rs", reduce(and_, keeps), sequences))


def _measured(name: str, measured: Tensor, sequences: Ragged, rejection: Rejection) -> dict[str, Tensor]:
    """Statistics of the divergence that one rejection compares with its threshold: [N] tokens or [S] sequences."""
    if rejection.scope == "token":
        of_tokens = compared = measured
        of_sequences = _nonempty(sequences.mean(measured), sequences)
    else:
        of_tokens = sequences.spread(measured)
        compared = of_sequences = _nonempty(measured, sequences)
    return {
        f"{name}_mean": of_tokens.mean(),
        f"{name}_std": of_tokens.clamp(rejection.low, rejection.high).std(correction=0),
        f"{name}_max": compared.max(),
        f"{name}_min": compared.min(),
        f"{name}_fraction_high": _share(compared > rejection.high),
        f"{name}_fraction_low": _share(compared < rejection.low),
        f"{name}_seq_fraction_high": _share(of_sequences > rejection.high),
        f"{name}_seq_fraction_low": _share(of_sequences < rejection.low),
        **_spread(f"{name}_seq", of_sequences, ideal=0.0),
    }


def _masked(name: str, keep: Tensor, sequences: Ragged) -> dict[str, Tensor]:
    dropped = (~keep).double()
    return {
        f"{name}_masked_fraction": dropped.mean(),
        f"{name}_seq_masked_fraction": _nonempty(sequences.max(dropped), sequences).mean(),
    }


def _spread(name: str, values: Tensor, *, ideal: float) -> dict[str, Tensor]:
    """Statistics of one number per sequence."""
    return {
        f"{name}_mean": values.mean(),
        f"{name}_std": values.std(correction=min(len(values) - 1, 1)),
        f"{name}_max": values.max(),
        f"{name}_min": values.min(),
        f"{name}_max_deviation": (values - ideal).abs().max(),
    }


def _nonempty(values: Tensor, sequences: Ragged) -> Tensor:
    """Elements of [S] whose sequences have tokens."""
    return values[sequences.lengths > 0]


def _share(mask: Tensor) -> Tensor:
    return mask.double().mean()


def _floats(found: dict[str, Tensor]) -> dict[str, float]:
    return {name: float(value) for name, value in found.items()}


# ── correct ───────────────────────────────────────────────────────────────────────────────────


class Correct:
    """
    Compares trainer and sampler on the same tokens; raises `ConfigError` for an invalid correction.

    In decoupled mode call it once with the whole step, in bypass mode with each micro-batch. Only normalized weights
    depend on the other tokens of the call.
    """

    def __init__(self, correction: Correction) -> None:
        self._importance, self._rejections = thresholds(resolved(correction))

    @torch.no_grad()
    def __call__(
        self, logprobs: Tensor, behavior_logprobs: Tensor, sequences: Ragged
    ) -> tuple[Tensor | None, Tensor | None]:
        """
        [N] factors of the losses, and [N] bool, False for tokens removed from the loss; None for what changes none.

        Args:
            logprobs: [N] under the trainer's policy, at the start of the step (decoupled) or now (bypass), nats.
            behavior_logprobs: [N] under the policy that sampled, nats.
            sequences: Sequences of the N tokens, on the same device.
        """
        log_ratio = logprobs - behavior_logprobs
        weights = importance_weights(log_ratio, sequences, self._importance) if self._importance else None
        keeps = [kept(log_ratio, sequences, rejection) for rejection in self._rejections]
        return weights, reduce(and_, keeps) if keeps else None

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


# ── divergent ─────────────────────────────────────────────────────────────────────────────────
# Mask of sequences that the policy has moved away from and that would push it further.


def divergent(log_ratio: Tensor, advantages: Tensor, sequences: Ragged, threshold: float) -> Tensor:
    """
    Mark the tokens to leave out of the loss: those of negative advantage in divergent sequences.

        divergent_i = mean_t (behavior_logprobs - logprobs) > threshold

    The mean estimates the KL of the sampler to the trainer, per token. A bad answer that has become unlikely teaches
    little, and the gradient that makes it less likely still is unbounded; a good one pulls the policy back, and stays.

    Args:
        log_ratio: [N] trainer to sampler, nats. Without gradient.
        advantages: [N].
        threshold: Largest mean of a sequence that is trained on, nats per token.

    Returns:
        [N] bool. With an advantage for each trajectory, whole sequences are marked or left.

    Source:
        DeepSeek-AI 2025, arXiv:2512.02556 (off-policy sequence masking).
    """
    return sequences.spread(sequences.mean(-log_ratio) > threshold) & (advantages < 0)
