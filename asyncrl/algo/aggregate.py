"""
Aggregation of token losses into one number: the weight of each token's loss in the loss of the step.

    loss = Σ_i  w_i  Σ_t  loss_it          i: trajectories of the *whole* step, t: completion tokens of i

Each of the six aggregations is such a sum, and differs only in w_i, a function of the trajectory's length and of
totals over the whole step and over its group. The totals are counted once, before the step is split, so the sum over
micro-batches and over ranks is the loss of one large batch, however it is split. Trajectories that are skipped because
their loss is exactly zero still count in the totals; one whose every token is rejected counts as a trajectory and adds
nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

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
