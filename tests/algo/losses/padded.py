"""
Independent reference formulas: float64 NumPy on rectangles with a mask, as in the papers' code.

A formula gets log-probs twice: those to differentiate, and the same ones where a gradient is stopped. Its gradient
comes from central differences that change only the first, so nothing here shares code, layout or autograd with the
code under test. Masked positions (tools, padding) hold numbers that would be noticed in a result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from asyncrl.algo.aggregate import Ragged
from asyncrl.algo.loss_tokens import Tokens

Rectangle = NDArray[np.float64]
Formula = Callable[..., Rectangle]
STEP = 1e-5


@dataclass
class Padded:
    """S trajectories of at most W tokens."""

    logprobs: Rectangle
    old_logprobs: Rectangle
    advantages: Rectangle
    mask: NDArray[np.bool_]
    selected: NDArray[np.bool_]

    @property
    def lengths(self) -> NDArray[np.int64]:
        return self.mask.sum(1)

    def flat(self, rectangle: NDArray[Any], **options: Any) -> torch.Tensor:
        """Unmasked numbers, trajectories end to end."""
        return torch.tensor(rectangle[self.mask], **options)

    def tokens(self, dtype: torch.dtype = torch.float64) -> Tokens:
        return Tokens(
            logprobs=self.flat(self.logprobs, dtype=dtype, requires_grad=True),
            old_logprobs=self.flat(self.old_logprobs, dtype=dtype),
            advantages=self.flat(self.advantages, dtype=dtype),
            sequences=Ragged(self.lengths.tolist()),
            is_selected=self.flat(self.selected),
        )


def random_padded(seed: int, num_sequences: int = 24, width: int = 14) -> Padded:
    """
    Trajectories of any length, some empty and some all tool; ratios mostly near 1, some exactly, some e^±50.

    Advantages are one number a trajectory, zero for some, and one a token for the first quarter.
    """
    random = np.random.default_rng(seed)
    shape = (num_sequences, width)
    lengths = random.integers(0, width + 1, size=num_sequences)
    lengths[:2] = 0, width
    mask = (np.arange(width) < lengths[:, None]) & (random.random(shape) > 0.25)
    mask[2] = False
    scale = random.choice([0.0, 1e-3, 0.2, 2.0, 50.0], p=[0.1, 0.3, 0.4, 0.15, 0.05], size=shape)
    moved = scale * random.uniform(-1, 1, size=shape)
    moved[scale == 50.0] = 50.0 * np.sign(moved[scale == 50.0])
    higher = -random.exponential(size=shape)  # of the two, so that neither probability is above 1
    advantages = np.repeat(random.normal(size=(num_sequences, 1)), width, axis=1)
    advantages[random.random(num_sequences) < 0.2] = 0.0
    advantages[: num_sequences // 4] = random.normal(size=(num_sequences // 4, width))
    hidden = np.where(mask, 0.0, random.uniform(3, 4, size=shape))
    return Padded(
        logprobs=np.minimum(higher, higher + moved) + hidden,
        old_logprobs=np.minimum(higher, higher - moved) - hidden,
        advantages=advantages + hidden,
        mask=mask,
        selected=random.random(shape) < 0.3,
    )


def mean_of_rows(values: Rectangle, mask: NDArray[np.bool_]) -> Rectangle:
    """[S, 1] over what the mask shows; 0 for a row without anything."""
    return ((values * mask).sum(1) / np.maximum(mask.sum(1), 1))[:, None]


def aggregated(name: str, losses: Rectangle, mask: NDArray[np.bool_], norm: float = 1.0) -> Rectangle:
    """[S, W] each token's part in the loss of the step, by the six ways to average."""
    lengths, number = mask.sum(1, keepdims=True), len(mask)
    shown = losses * mask
    groups = group_of_rows(number)
    group_tokens = np.bincount(groups, lengths[:, 0])[groups][:, None]
    return {
        "token-mean": lambda: shown / mask.sum(),
        "token-sum": lambda: shown,
        "seq-mean-token-sum": lambda: shown * (lengths > 0) / number,
        "seq-mean-token-sum-norm": lambda: shown * (lengths > 0) / number / norm,
        "seq-mean-token-mean": lambda: shown / (lengths + 1e-8) * (lengths > 0) / number,
        "prompt-mean": lambda: shown / np.maximum(group_tokens, 1) / (groups.max() + 1),
    }[name]()


def group_of_rows(number: int) -> NDArray[np.intp]:
    """[S] group of each row: three trajectories of a prompt, the last group may have fewer."""
    return np.arange(number) // 3


def slope(function: Callable[[Rectangle], Rectangle], at: Rectangle) -> Rectangle:
    """
    [S, W] gradient of the sum of ``function``, whose rows depend only on the same row of what it is given.

    Differences are taken before they are summed: beside a loss of e^50 all others would be lost to rounding.
    """
    gradient = np.zeros_like(at)
    for column in range(at.shape[1]):
        step = np.zeros_like(at)
        step[:, column] = STEP
        gradient[:, column] = ((function(at + step) - function(at - step)) / (2 * STEP)).sum(1)
    return gradient


# ── formulas: logprobs, the same without a gradient, the batch, settings ──────────────────────────────────


def _ratio(new: Rectangle, batch: Padded, bound: float = np.inf) -> Rectangle:
    return np.exp(np.clip(new - batch.old_logprobs, -bound, bound))


def _ppo(ratio: Rectangle, advantages: Rectangle, low: float, high: float) -> Rectangle:
    return np.maximum(-advantages * ratio, -advantages * np.clip(ratio, 1 - low, 1 + high))


def _clipped(new, frozen, batch, *, clip_low, clip_high, dual_clip):
    advantages = batch.advantages
    upper = _ppo(_ratio(new, batch, 20), advantages, clip_low, clip_high)
    if dual_clip == 0:
        return upper
    return np.where(advantages < 0, np.minimum(-advantages * dual_clip, upper), upper)


def _gspo(new, frozen, batch, *, clip_low, clip_high):
    mean = mean_of_rows(frozen - batch.old_logprobs, batch.mask)
    ratio = np.exp(np.minimum(new - frozen + mean, 10))
    return _ppo(ratio, batch.advantages, clip_low, clip_high)


def _cispo(new, frozen, batch, *, clip_low, clip_high):
    return -np.clip(_ratio(frozen, batch, 20), 1 - clip_low, 1 + clip_high) * batch.advantages * new


def _sapo(new, frozen, batch, *, tau_pos, tau_neg):
    tau = np.where(batch.advantages > 0, tau_pos, tau_neg)
    return -batch.advantages / (1 + np.exp(-tau * (_ratio(new, batch) - 1))) * 4 / tau


def _gmpo(new, frozen, batch, *, clip_low, clip_high):
    moved, sign = new - batch.old_logprobs, np.sign(batch.advantages)
    least = sign * np.minimum(sign * moved, sign * np.clip(moved, -clip_low, clip_high))
    ratio = np.exp(mean_of_rows(least, batch.mask))
    return np.broadcast_to(-mean_of_rows(batch.advantages, batch.mask) * ratio, new.shape)


def _clip_cov(new, frozen, batch, *, clip_low, clip_high):
    return _ppo(_ratio(new, batch), batch.advantages, clip_low, clip_high) * ~batch.selected


def _kl_cov(new, frozen, batch, *, cov_kl_coef):
    return -batch.advantages * _ratio(new, batch) + batch.selected * cov_kl_coef * np.abs(new - batch.old_logprobs)


def _dppo(is_kept, new, frozen, batch, ratio_cap):
    return -batch.advantages * np.minimum(_ratio(frozen, batch), ratio_cap) * new * is_kept


def _dppo_tv(new, frozen, batch, *, clip_low, clip_high, ratio_cap):
    gain = np.exp(frozen) - np.exp(batch.old_logprobs)
    is_kept = np.where(batch.advantages > 0, gain <= clip_high, gain >= -clip_low)
    return _dppo(is_kept, new, frozen, batch, ratio_cap)


def _dppo_kl(new, frozen, batch, *, clip_low, clip_high, ratio_cap):
    shown = np.where(batch.mask, frozen, -1.0), np.where(batch.mask, batch.old_logprobs, -1.0)
    p, old = np.exp(shown[0]), np.exp(shown[1])
    kl = old * (shown[1] - shown[0]) + (1 - old) * np.log((1 - old + 1e-8) / (1 - p + 1e-8))
    up, down = (kl <= clip_high) | (p <= old), (kl <= clip_low) | (p >= old)
    return _dppo(np.where(batch.advantages > 0, up, down), new, frozen, batch, ratio_cap)


def _dro(new, frozen, batch, *, dro_beta):
    return -(new * batch.advantages - 0.5 * dro_beta * (new - batch.old_logprobs) ** 2)


def _reinforce(new, frozen, batch):
    return -new * batch.advantages


FORMULAS: dict[str, Formula] = {
    "clipped": _clipped,
    "vanilla": _clipped,
    "gspo": _gspo,
    "cispo": _cispo,
    "sapo": _sapo,
    "gmpo": _gmpo,
    "geo_mean": _gmpo,
    "clip_cov": _clip_cov,
    "kl_cov": _kl_cov,
    "dppo_tv": _dppo_tv,
    "dppo_kl": _dppo_kl,
    "dro": _dro,
    "gpg": _reinforce,
    "reinforce": _reinforce,
}
"""Per-token losses [S, W] by the name of the loss."""
