"""
Aggregation of token losses into one number: the weight of each token's loss in the loss of the step.

    loss = Σ_i  w_i  Σ_t  loss_it          i: trajectories of the *whole* step, t: completion tokens of i

Each of the six aggregations is such a sum, and differs only in w_i, a function of the trajectory's length and of
totals over the whole step and over its group. The totals are counted once, before the step is split, so the sum over
micro-batches and over ranks is the loss of one large batch, however it is split. Trajectories that are skipped because
their loss is exactly zero still count in the totals; one whose every token is rejected counts as a trajectory and adds
nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.config.catalogue import aggregation_path
from asyncrl.plug_in import load_function


@dataclass(frozen=True, slots=True)
class Totals:
    """Divisors of the loss of a step for one group of it: sums over every micro-batch and rank of the step."""

    num_tokens: int
    """Completion tokens that are trained on."""
    num_trajectories: int
    norm: float = 1.0
    """Constant divisor of ``seq-mean-token-sum-norm``; the others do not read it."""
    num_groups: int = 1
    """Prompts of the step."""
    group_tokens: int = 0
    """Completion tokens of the group that are trained on; only ``prompt-mean`` reads the last two."""


Weigh = Callable[[int, Totals], float]
"""``weigh(length, totals)``: weight of each token of a trajectory of ``length`` tokens."""


def token_mean(length: int, totals: Totals) -> float:
    """Every token weighs the same, so long trajectories weigh more (DAPO, arXiv:2503.14476, sec. 3.3)."""
    return 1 / max(totals.num_tokens, 1)


def token_sum(length: int, totals: Totals) -> float:
    """Plain sum, not divided."""
    return 1.0


def seq_mean_token_sum(length: int, totals: Totals) -> float:
    """Summed within a trajectory, averaged over trajectories."""
    return 1 / max(totals.num_trajectories, 1)


def seq_mean_token_sum_norm(length: int, totals: Totals) -> float:
    """`seq_mean_token_sum` divided by a constant, so that length has no influence (Dr. GRPO, arXiv:2503.20783)."""
    return 1 / (max(totals.num_trajectories, 1) * totals.norm)


def seq_mean_token_mean(length: int, totals: Totals) -> float:
    """Averaged within, then over trajectories: every trajectory weighs the same (GRPO, arXiv:2402.03300)."""
    return 1 / (max(totals.num_trajectories, 1) * max(length, 1))


def prompt_mean(length: int, totals: Totals) -> float:
    """Averaged over the tokens of a group, then over prompts: all prompts weigh alike (ScaleRL, arXiv:2510.13786)."""
    return 1 / (max(totals.num_groups, 1) * max(totals.group_tokens, 1))


def resolve_aggregation(name: str) -> Weigh:
    """Load the aggregation that ``algorithm.aggregation`` names; raises `ConfigError` if the name is unknown."""
    return load_function(aggregation_path(name), setting="algorithm.aggregation")


# ── ragged ────────────────────────────────────────────────────────────────────────────────────
# Sequences of different length, end to end, with sums and means per sequence and no padding.


class Ragged:
    """Boundaries of S sequences with N tokens in total, from their [S] ``lengths``. A sequence may be empty."""

    def __init__(self, lengths: Sequence[int], *, device: torch.device | None = None) -> None:
        self.lengths = torch.as_tensor(lengths, dtype=torch.int64, device=device)
        self.index = torch.repeat_interleave(torch.arange(len(lengths), device=device), self.lengths)
        """[N] int64, sequence of each token."""

    def __len__(self) -> int:
        return len(self.lengths)

    def sum(self, values: Tensor) -> Tensor:
        """[N] to [S]; 0 for an empty sequence. Carries the gradient."""
        return values.new_zeros(len(self)).index_add(0, self.index, values)

    def mean(self, values: Tensor) -> Tensor:
        """[N] to [S]; 0 for an empty sequence. Carries the gradient."""
        return self.sum(values) / self.lengths.clamp(min=1)

    def max(self, values: Tensor) -> Tensor:
        """[N] to [S]; -inf for an empty sequence."""
        lowest = values.new_full((len(self),), -torch.inf)
        return lowest.scatter_reduce(0, self.index, values, "amax")

    def spread(self, values: Tensor) -> Tensor:
        """[S] to [N]: each token gets the value of its sequence. Carries the gradient."""
        return values[self.index]


# ── effective sample size ─────────────────────────────────────────────────────────────────────
# Effective sample size of importance weights, as a share of the samples.
#
#     ess = (Σ w)² / (n Σ w²)        1: all weights are equal; 1/n: one sample outweighs all others
#
# The sums are kept as logarithms, so that no weight overflows, and those of parts add up to those of the whole.


def log_sums(log_weights: Tensor, count: Tensor | None = None) -> Tensor:
    """
    [3] log Σ w, log Σ w² and n, of n weights given as logarithms [n], nats; -inf, -inf and 0 without any.

    Nothing waits for the device. ``count`` is n if weights are left out, whose logarithm is -inf.
    """
    if count is None:
        count = log_weights.new_full((), len(log_weights))
    return torch.stack((log_weights.logsumexp(0), (2 * log_weights).logsumexp(0), count))


def combined(parts: Tensor) -> Tensor:
    """[..., 3] sums of the whole, from those of P parts [P, ..., 3]."""
    logs, counts = parts[..., :2].logsumexp(0), parts[..., 2:].sum(0)
    return torch.cat((logs, counts), -1)


def effective_sample_size(sums: Tensor) -> Tensor:
    """
    [...] effective sample size as a share of the samples, in (0, 1], from sums [..., 3] of at least one weight.

    Source:
        Kish 1965, Survey Sampling; Kong 1992, A note on importance sampling using standardized weights.
    """
    return (2 * sums[..., 0] - sums[..., 1] - sums[..., 2].log()).exp()
