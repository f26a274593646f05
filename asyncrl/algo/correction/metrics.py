"""
Metrics of the divergence between sampler and trainer and of its correction. Names are verl's, without its prefix.

They are computed over a whole step, because most of them are not sums over parts. Means are over tokens, or over
sequences with tokens if the name contains ``seq`` or ``ppl``.
"""

from collections.abc import Sequence
from functools import reduce
from operator import and_

from torch import Tensor

from asyncrl.algo.correction.rejection import divergence, kept
from asyncrl.algo.correction.weights import LIMIT, bounded, normalizer, unbounded
from asyncrl.algo.ragged import Ragged
from asyncrl.config.correction import Importance, Rejection


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
