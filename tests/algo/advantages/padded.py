"""
The formulas again, the way they are usually written: on rectangles with masks, in float64, and with nothing of ours.

    row        t t t o o o t t . . . .        t written by the policy, o by a tool, . padding
    mask       1 1 1 0 0 0 1 1 0 0 0 0

Wherever the mask is 0, arrays hold garbage: a formula that looks there is wrong.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from asyncrl.algo.outcomes import Outcome

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Padded:
    """S trajectories, W columns."""

    group: NDArray[np.int64]
    """[S]."""
    mask: Array
    """[S, W] of 0 and 1."""
    score: Array
    """[S]."""
    metrics: dict[str, Array]
    """[S] each."""
    greedy: Array
    """[S]."""
    penalties: Array | None
    logprobs: Array
    sum_pi_squared: Array
    values: Array
    importance: Array | None
    """[S, W] each."""

    @property
    def total(self) -> Array:
        """[S] score less penalties."""
        return self.score if self.penalties is None else self.score - (self.penalties * self.mask).sum(1)

    @property
    def rewards(self) -> Array:
        """[S, W]; the score on the last token that the policy wrote."""
        rewards = np.zeros_like(self.mask) if self.penalties is None else -self.penalties * self.mask
        for row in range(len(self.mask)):
            if self.mask[row].any():
                rewards[row, np.flatnonzero(self.mask[row])[-1]] += self.score[row]
        return rewards

    @property
    def rows(self) -> list[NDArray[np.int64]]:
        """Rows of each group."""
        return [np.flatnonzero(self.group == group) for group in np.unique(self.group)]

    def outcomes(self) -> list[Outcome]:
        """The same, without what is masked."""

        def kept(values: Array | None, row: int) -> Array | None:
            return None if values is None else values[row][self.mask[row] == 1]

        return [
            Outcome(
                group_id=int(self.group[row]),
                length=int(self.mask[row].sum()),
                reward=float(self.score[row]),
                metrics={key: float(values[row]) for key, values in self.metrics.items()},
                baseline=float(self.greedy[row]),
                penalties=kept(self.penalties, row),
                logprobs=kept(self.logprobs, row),
                sum_pi_squared=kept(self.sum_pi_squared, row),
                values=kept(self.values, row),
                importance=kept(self.importance, row),
            )
            for row in range(len(self.group))
        ]


def random_step(rng: Generator, *, smallest_group: int = 1) -> Padded:
    """Ragged groups, scattered; some all equal, some rows without a token, now and then enormous numbers."""
    sizes = rng.integers(smallest_group, 6, size=rng.integers(1, 6))
    group = rng.permutation(np.repeat(np.arange(len(sizes)) + 7, sizes))
    num_rows, width = len(group), int(rng.integers(2, 16))
    mask = _mask(rng, num_rows, width)
    scale = 10.0 ** rng.integers(-3, 7)
    score = rng.choice([rng.normal(size=num_rows), rng.integers(0, 2, size=num_rows).astype(float)]) * scale
    metrics = {"right": rng.integers(0, 2, size=num_rows).astype(float), "terse": rng.normal(size=num_rows) * scale}
    for number in np.unique(group):
        if rng.random() < 0.3:
            score[group == number] = rng.choice([0.0, 0.1 * scale])
            metrics["right"][group == number] = 1.0
    cells = (num_rows, width)
    step = Padded(
        group=group,
        mask=mask,
        score=score,
        metrics=metrics,
        greedy=rng.normal(size=num_rows) * scale,
        penalties=rng.normal(size=cells) * scale if rng.random() < 0.3 else None,
        logprobs=-rng.exponential(rng.choice([1e-3, 1.0, 30.0]), size=cells),
        sum_pi_squared=rng.uniform(0.01, 1.0, size=cells),
        values=rng.normal(size=cells) * scale,
        importance=rng.uniform(0.0, 3.0, size=cells) if rng.random() < 0.5 else None,
    )
    return _with_garbage(step, rng)


def _mask(rng: Generator, num_rows: int, width: int) -> Array:
    """Tokens, then perhaps a tool's and more tokens, then padding. At least two tokens in all; rows may have none."""
    mask = np.zeros((num_rows, width))
    for row in mask:
        length = rng.choice([0, int(rng.integers(1, width + 1)), width], p=[0.1, 0.7, 0.2])
        row[:length] = 1
        for _ in range(rng.integers(0, 3)):
            begin = rng.integers(0, width)
            row[begin : begin + rng.integers(0, 4)] = 0
    if mask.sum() < 2:
        mask[0, :2] = 1
    return mask


def _with_garbage(step: Padded, rng: Generator) -> Padded:
    def spoiled(values: Array | None) -> Array | None:
        return None if values is None else np.where(step.mask == 1, values, rng.normal(size=values.shape) * 1e3)

    names = ("penalties", "logprobs", "sum_pi_squared", "values", "importance")
    spoilt: dict[str, Any] = {name: spoiled(getattr(step, name)) for name in names}
    return replace(step, **spoilt)


# ── what several formulas have in common ───────────────────────────────────────────────


def whiten(values: Array, mask: Array) -> Array:
    """[S, W] by mean and unbiased variance of what is not masked."""
    num = mask.sum()
    mean = np.where(mask == 1, values, 0).sum() / num
    variance = np.where(mask == 1, (values - mean) ** 2, 0).sum() / (num - 1)
    return (values - mean) / np.sqrt(variance + 1e-8) * mask


def baseline(step: Padded, of: Callable[[Array], float], values: Array) -> Array:
    """[S] ``of`` a group, or 0 for a group of one."""
    found = np.zeros(len(values))
    for rows in step.rows:
        found[rows] = of(values[rows]) if len(rows) > 1 else 0.0
    return found


def deviation(step: Padded, values: Array) -> Array:
    """[S] standard deviation of a group, or 1 for a group of one."""
    found = np.ones(len(values))
    for rows in step.rows:
        if len(rows) > 1:
            found[rows] = np.sqrt(((values[rows] - values[rows].mean()) ** 2).sum() / (len(rows) - 1))
    return found


def to_come(step: Padded, gamma: float = 1.0) -> Array:
    """[S, W] discounted rewards from here on; what is masked takes no time."""
    found, running = np.zeros_like(step.mask), np.zeros(len(step.mask))
    for column in reversed(range(step.mask.shape[1])):
        mask = step.mask[:, column]
        now = step.rewards[:, column] + gamma * running
        found[:, column] = now * mask
        running = np.where(mask == 1, now, running)
    return found


# ── the formulas ───────────────────────────────────────────────────────────────────────


def grpo(step: Padded) -> Array:
    return _standardized(step, step.total)[:, None] * step.mask


def _standardized(step: Padded, values: Array) -> Array:
    return (values - baseline(step, np.mean, values)) / (deviation(step, values) + 1e-6)


def dr_grpo(step: Padded) -> Array:
    return (step.total - baseline(step, np.mean, step.total))[:, None] * step.mask


def grpo_passk(step: Padded) -> Array:
    advantages = np.zeros_like(step.mask)
    for rows in step.rows:
        best, second = sorted(step.total[rows], reverse=True)[:2]
        first = rows[step.total[rows].argmax()]
        advantages[first] = (best - second) / (np.std(step.total[rows], ddof=1) + 1e-6)
    return advantages * step.mask


def rloo(step: Padded) -> Array:
    others = np.zeros(len(step.total))
    for rows in step.rows:
        for row in rows:
            rest = step.total[rows[rows != row]]
            others[row] = rest.mean() if len(rest) else 0.0
    return (step.total - others)[:, None] * step.mask


def opo(step: Padded) -> Array:
    lengths, found = step.mask.sum(1), np.zeros(len(step.total))
    for rows in step.rows:
        if len(rows) > 1 and lengths[rows].sum():
            found[rows] = (lengths[rows] * step.total[rows]).sum() / lengths[rows].sum()
    return (step.total - found)[:, None] * step.mask


def gpg(step: Padded) -> Array:
    alpha = len(step.total) / max((step.total != 0).sum(), 1)
    return alpha * dr_grpo(step)


def gdpo(step: Padded, *, reward_weights: dict[str, float]) -> Array:
    weighted = [weight * _standardized(step, step.metrics[key]) for key, weight in reward_weights.items()]
    combined = np.sum(weighted, axis=0)
    return whiten(combined[:, None] * step.mask, step.mask)


def reinforce_plus_plus(step: Padded, *, gamma: float) -> Array:
    return whiten(to_come(step, gamma), step.mask)


def reinforce_plus_plus_baseline(step: Padded) -> Array:
    return whiten(dr_grpo(step), step.mask)


def remax(step: Padded) -> Array:
    return (to_come(step) - step.greedy[:, None]) * step.mask


def gae(step: Padded, *, gamma: float, lam: float) -> Array:
    return whiten(gae_before_whitening(step, gamma, lam), step.mask)


def gae_before_whitening(step: Padded, gamma: float, lam: float) -> Array:
    """Masked positions are skipped: value and advantage of the next token are unchanged."""
    found = np.zeros_like(step.mask)
    next_value, running = np.zeros(len(step.mask)), np.zeros(len(step.mask))
    for column in reversed(range(step.mask.shape[1])):
        mask, value = step.mask[:, column], step.values[:, column]
        now = step.rewards[:, column] + gamma * next_value - value + gamma * lam * running
        next_value = np.where(mask == 1, value, next_value)
        running = np.where(mask == 1, now, running)
        found[:, column] = running
    return found


def optimal_token_baseline(step: Padded) -> Array:
    """Token k of a row is the k-th that is not masked; tokens of siblings are compared by that number."""
    advantages, returns = np.zeros_like(step.mask), to_come(step)
    ratio = np.ones_like(step.mask) if step.importance is None else step.importance
    with np.errstate(over="ignore", invalid="ignore"):  # garbage
        weights = (1 - 2 * np.exp(step.logprobs) + step.sum_pi_squared) * ratio**2
    weights = np.cumsum(np.where(step.mask == 1, weights, 0.0), axis=1)
    for rows in step.rows:
        for number in range(int(step.mask[rows].sum(1).max())):
            cells = list(_cells(step, rows, number))
            total = sum(weights[cell] for cell in cells) + 1e-8
            mean = sum(returns[cell] * weights[cell] for cell in cells) / total if len(cells) > 1 else 0.0
            for cell in cells:
                advantages[cell] = returns[cell] - mean
    return advantages


def _cells(step: Padded, rows: NDArray[np.int64], number: int) -> Iterator[tuple[int, int]]:
    """Row and column of everybody's k-th token."""
    for row in rows:
        columns = np.flatnonzero(step.mask[row])
        if number < len(columns):
            yield row, columns[number]


FORMULAS: dict[str, Callable[..., Array]] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "grpo_passk": grpo_passk,
    "rloo": rloo,
    "opo": opo,
    "gpg": gpg,
    "gdpo": gdpo,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "remax": remax,
    "gae": gae,
    "optimal_token_baseline": optimal_token_baseline,
    "tir_optimal_token_baseline": optimal_token_baseline,
}


def random_settings(rng: Generator) -> dict[str, Any]:
    """One of every setting that any of them reads."""
    return {
        "gamma": float(rng.choice([1.0, 0.9])),
        "lam": float(rng.choice([0.0, 0.5, 0.95, 1.0])),
        "reward_weights": {"right": 1.0, "terse": float(rng.normal())},
    }
