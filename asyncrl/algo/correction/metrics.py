"""
How far sampler and trainer are apart, and what correction does about it. Names are verl's, without its prefix.

Of a whole step at once: most of these are no sums over parts. Means are over tokens, unless the name has ``seq`` or
``ppl`` in it; sequences without a token are not among those that are averaged over.
"""

from collections.abc import Sequence
from functools import reduce
from operator import and_

from torch import Tensor

from asyncrl.algo.correction.rejection import divergence, kept
from asyncrl.algo.correction.weights import LIMIT, bounded, normalizer, unbounded
from asyncrl.algo.ragged import Ragged
from asyncrl.config.thresholds import Importance, Rejection


def mismatch_metrics(logprobs: Tensor, behavior_logprobs: Tensor, sequences: Ragged) -> dict[str, float]:
    """
    Divergence of the two policies on the tokens that were sampled.

    ``kl`` and ``k3_kl`` estimate the same, KL(sampler ‖ trainer); ``chi2_token`` and ``chi2_seq`` the variance of
    importance weights, of tokens and of sequences. A ``ppl`` is the perplexity of a sequence.

    Args:
        logprobs: [N] under the trainer's policy, nats. N > 0.
        behavior_logprobs: [N].
        sequences: All of the step.
    """
    log_ratio = logprobs - behavior_logprobs
    training, rollout = (-_of_sequences(sequences.mean(values), sequences) for values in (logprobs, behavior_logprobs))
    difference = training - rollout
    sequence_ratio = _of_sequences(sequences.sum(log_ratio), sequences)
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
    Importance weights as they are used, before they are normalised; what was outside the bounds, as it was before.

    ``eff_sample_size`` is the share of tokens that would say as much, were they weighted alike: 1 at best.

    Args:
        log_ratio: [N] trainer to sampler, nats. N > 0.
        sequences: All of the step.
    """
    ratios = unbounded(log_ratio, sequences, importance)
    weights = bounded(ratios, importance)
    of_sequences, ratio_of_sequences = (_of_sequences(sequences.mean(w), sequences) for w in (weights, ratios))
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
    What each rejection measures and leaves out, and what all of them together do.

    ``masked_fraction`` is of tokens, ``seq_masked_fraction`` of sequences that lose any.

    Args:
        log_ratio: [N] trainer to sampler, nats. N > 0.
        sequences: All of the step.
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
    """Of what one rejection compares with its threshold: [N] of tokens, or [S] of sequences."""
    if rejection.scope == "token":
        of_tokens = compared = measured
        of_sequences = _of_sequences(sequences.mean(measured), sequences)
    else:
        of_tokens = sequences.spread(measured)
        compared = of_sequences = _of_sequences(measured, sequences)
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
        f"{name}_seq_masked_fraction": _of_sequences(sequences.max(dropped), sequences).mean(),
    }


def _spread(name: str, values: Tensor, *, ideal: float) -> dict[str, Tensor]:
    """Of one number for each sequence that has any tokens."""
    return {
        f"{name}_mean": values.mean(),
        f"{name}_std": values.std(correction=min(len(values) - 1, 1)),
        f"{name}_max": values.max(),
        f"{name}_min": values.min(),
        f"{name}_max_deviation": (values - ideal).abs().max(),
    }


def _of_sequences(values: Tensor, sequences: Ragged) -> Tensor:
    """Of [S] those that have any tokens."""
    return values[sequences.lengths > 0]


def _share(is_so: Tensor) -> Tensor:
    return is_so.double().mean()


def _floats(found: dict[str, Tensor]) -> dict[str, float]:
    return {name: float(value) for name, value in found.items()}
