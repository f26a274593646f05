"""
How token losses become one number: the weight a token's loss has in the loss of the step.

    loss = Σ_i  w_i  Σ_t  loss_it          i: trajectories of the *whole* step, t: completion tokens of i

Each of the five aggregations is such a sum, and differs only in w_i, a function of the trajectory's length and of
totals over the whole step. The totals are counted once, before the step is cut; so the sum over micro-batches, and
over ranks, is the loss of one large batch, however it was cut. Trajectories left out because their loss is exactly
zero still count in the totals; one whose every token was rejected still counts as a trajectory, and adds nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Totals:
    """What the loss of a step is divided by. Sums over every micro-batch and rank of the step."""

    num_tokens: int
    """Completion tokens that are trained on."""
    num_trajectories: int
    norm: float = 1.0
    """Constant divisor of ``seq-mean-token-sum-norm``; the others do not read it."""


def token_mean(length: int, totals: Totals) -> float:
    """Every token weighs the same, so long trajectories weigh more (DAPO, arXiv:2503.14476, sec. 3.3)."""
    return 1 / max(totals.num_tokens, 1)


def token_sum(length: int, totals: Totals) -> float:
    """No division at all."""
    return 1.0


def seq_mean_token_sum(length: int, totals: Totals) -> float:
    """Summed within a trajectory, averaged over trajectories."""
    return 1 / max(totals.num_trajectories, 1)


def seq_mean_token_sum_norm(length: int, totals: Totals) -> float:
    """The same over a constant, so that length has no influence (Dr. GRPO, arXiv:2503.20783)."""
    return 1 / (max(totals.num_trajectories, 1) * totals.norm)


def seq_mean_token_mean(length: int, totals: Totals) -> float:
    """Averaged within a trajectory, then over them: every trajectory weighs the same (GRPO, arXiv:2402.03300)."""
    return 1 / (max(totals.num_trajectories, 1) * max(length, 1))


AGGREGATIONS: dict[str, Callable[[int, Totals], float]] = {
    "token-mean": token_mean,
    "token-sum": token_sum,
    "seq-mean-token-sum": seq_mean_token_sum,
    "seq-mean-token-sum-norm": seq_mean_token_sum_norm,
    "seq-mean-token-mean": seq_mean_token_mean,
}
"""Weight of each token of a trajectory of ``length`` tokens, by the name in ``algorithm.aggregation``."""
