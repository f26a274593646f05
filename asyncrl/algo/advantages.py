"""
Advantage estimators, by the name in ``algorithm.advantage``: outcomes of a step in, one number for each token out.

In the formulas s is the total of a trajectory: its reward minus its penalties. A group with equal totals has advantages
of exactly zero, and the trainer skips such trajectories. A group of one keeps its total.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import fsum, sqrt
from typing import Any, get_args

import numpy as np

from asyncrl.algo.outcomes import Advantages, Floats, Outcome
from asyncrl.config.catalogue import Need, estimator_entry
from asyncrl.config.sections.algorithm import Algorithm
from asyncrl.errors import AsyncrlError, ConfigError
from asyncrl.plug_in import blamed, is_path, load_function, settings_of

# ── groups ────────────────────────────────────────────────────────────────────────────────────
# Computations per group of trajectories.
#
#     outcomes of a step ─▶ by group ─▶ one number per trajectory ─▶ the same on each of its tokens


def groups(outcomes: Sequence[Outcome]) -> dict[int, list[int]]:
    """Indices of the trajectories of each group; they need not be adjacent."""
    places: dict[int, list[int]] = {}
    for place, outcome in enumerate(outcomes):
        places.setdefault(outcome.group_id, []).append(place)
    return places


def per_group(outcomes: Sequence[Outcome], estimate: Callable[[list[Outcome]], Floats]) -> Floats:
    """[S] numbers in the order of the [S] outcomes; ``estimate`` maps the n outcomes of one group to [n] numbers."""
    numbers = np.zeros(len(outcomes))
    for places in groups(outcomes).values():
        numbers[places] = estimate([outcomes[place] for place in places])
    return numbers


def on_every_token(outcomes: Sequence[Outcome], numbers: Floats) -> Advantages:
    """Spread [S] numbers: [T] copies for each trajectory."""
    return [np.full(outcome.length, number) for outcome, number in zip(outcomes, numbers, strict=True)]


# ── seats ─────────────────────────────────────────────────────────────────────────────────────
# Seats of one policy, such as the two sides of a game, whose rewards are not alike.
#
#     group     episode 0    episode 1    episode 2
#     seat 0        1           -1            1        compared with each other
#     seat 1       -1            1           -1        and these, never with those of seat 0


def of_each_seat(estimate: "AdvantageFunction", *, compares_group: bool) -> "AdvantageFunction":
    """
    An estimator that is given the trajectories of one seat at a time, so that it compares and whitens no others.

    If it compares the trajectories of a group, a seat that spoke in one episode of several has advantages of zero.
    """

    def of_seats(outcomes: Sequence[Outcome], **settings: Any) -> Advantages:
        of_group = Counter(outcome.group_id for outcome in outcomes)
        of_seat = Counter((outcome.group_id, outcome.seat) for outcome in outcomes)
        advantages = [np.zeros(outcome.length) for outcome in outcomes]
        for seat in sorted({outcome.seat for outcome in outcomes}):
            places = [
                place
                for place, outcome in enumerate(outcomes)
                if outcome.seat == seat
                and not (compares_group and of_seat[outcome.group_id, seat] == 1 < of_group[outcome.group_id])
            ]
            found = estimate([outcomes[place] for place in places], **settings)
            for place, one in zip(places, found, strict=True):
                advantages[place] = one
        return advantages

    return of_seats


# ── group baselines ───────────────────────────────────────────────────────────────────────────

STD_EPSILON = 1e-6
"""Added to the standard deviation, so that a group of nearly equal totals does not explode."""


def grpo(outcomes: Sequence[Outcome]) -> Advantages:
    """
    Total minus the mean of the group, divided by its standard deviation.

        A_i = (s_i - mean(s)) / (std(s) + 1e-6),    std with n - 1 in the denominator

    Source:
        Shao et al. 2024, arXiv:2402.03300, sec. 4.1.
    """
    return on_every_token(outcomes, per_group(outcomes, lambda group: standardized(totals(group))))


def dr_grpo(outcomes: Sequence[Outcome]) -> Advantages:
    """
    Total minus the mean of the group, not divided, so that very easy and very hard prompts weigh no more.

        A_i = s_i - mean(s)

    Source:
        Liu et al. 2025, arXiv:2503.20783, sec. 3.
    """
    return on_every_token(outcomes, per_group(outcomes, lambda group: centred(totals(group))))


def grpo_passk(outcomes: Sequence[Outcome]) -> Advantages:
    """
    Margin of the best trajectory of the group over the second; zero for all others.

        A_best = (s_best - s_second) / (std(s) + 1e-6),    all others 0

    Source:
        arXiv:2503.19595.
    """
    return on_every_token(outcomes, per_group(outcomes, _margin_of_the_best))


def rloo(outcomes: Sequence[Outcome]) -> Advantages:
    """
    Total minus the mean of the other trajectories of the group.

        A_i = s_i - mean(s_j, j != i) = n / (n - 1) (s_i - mean(s))

    Source:
        Ahmadian et al. 2024, arXiv:2402.14740.
    """

    def estimate(group: list[Outcome]) -> Floats:
        return centred(totals(group)) * (len(group) / max(len(group) - 1, 1))

    return on_every_token(outcomes, per_group(outcomes, estimate))


def opo(outcomes: Sequence[Outcome]) -> Advantages:
    """
    Total minus the mean weighted by length: the baseline of least variance if gradients grow with length.

        A_i = s_i - sum_j T_j s_j / sum_j T_j

    Source:
        Hao et al. 2025, arXiv:2505.23585.
    """
    return on_every_token(outcomes, per_group(outcomes, _minus_the_mean_by_length))


def gpg(outcomes: Sequence[Outcome]) -> Advantages:
    """
    Total minus the mean of the group, divided by the share of trajectories of the step with a nonzero total.

        A_i = S / max(#{j: s_j != 0}, 1) (s_i - mean(s)),    S trajectories in the step

    Source:
        Chu et al. 2025, arXiv:2504.02546.
    """
    scale = len(outcomes) / max(int(np.count_nonzero(totals(outcomes))), 1)
    return on_every_token(outcomes, scale * per_group(outcomes, lambda group: centred(totals(group))))


def totals(outcomes: Sequence[Outcome]) -> Floats:
    """[n] reward minus penalties of each trajectory."""
    return np.array([outcome.total for outcome in outcomes], dtype=np.float64)


def centred(values: Floats) -> Floats:
    """[n] values minus their mean; exactly zero if all are equal. A single value is returned unchanged."""
    if len(values) == 1:
        return values.copy()
    if (values == values[0]).all():  # the mean of equal floats may be off by one bit, and zero must be zero
        return np.zeros_like(values)
    return values - fsum(values) / len(values)


def standardized(values: Floats) -> Floats:
    """`centred` values divided by their standard deviation, which counts as 1 for a single value."""
    return centred(values) / (_deviation(values) + STD_EPSILON)


def _deviation(values: Floats) -> float:
    if len(values) == 1:
        return 1.0
    return sqrt(fsum(centred(values) ** 2) / (len(values) - 1))


def _margin_of_the_best(group: list[Outcome]) -> Floats:
    if len(group) < 2:
        raise AsyncrlError(
            f"grpo_passk compares the best trajectory of a group with the second, but group {group[0].group_id} has "
            f"only one; set schedule.group_size to at least 2"
        )
    values = totals(group)
    second, best = np.argsort(values)[-2:]
    advantages = np.zeros_like(values)
    advantages[best] = (values[best] - values[second]) / (_deviation(values) + STD_EPSILON)
    return advantages


def _minus_the_mean_by_length(group: list[Outcome]) -> Floats:
    values, lengths = totals(group), np.array([outcome.length for outcome in group])
    if len(group) == 1:
        return values
    if (values == values[0]).all() or not lengths.any():
        return np.zeros_like(values)
    return values - fsum(lengths * values) / int(lengths.sum())


# ── returns ───────────────────────────────────────────────────────────────────────────────────
# Discounted returns.


def discounted(gains: Sequence[Floats], discount: float) -> list[Floats]:
    """
    [T] sums of each token's reward and all later ones, discounted, for each trajectory.

        G_t = g_t + discount G_{t+1}

    All trajectories are processed together from their last tokens to their first, so the number of Python iterations
    is the length of the longest trajectory and not the number of tokens.

    Args:
        gains: [T] rewards or temporal differences of each trajectory.
        discount: Factor per token.
    """
    lengths = np.array([len(part) for part in gains], dtype=np.int64)
    flat = np.concatenate([np.zeros(0), *gains])
    longest_first = np.argsort(-lengths, kind="stable")
    last = lengths.cumsum()[longest_first] - 1
    num_longer = len(gains) - np.searchsorted(np.sort(lengths), np.arange(lengths.max(initial=0)), side="right")
    running = np.zeros(len(gains))
    for step, num in enumerate(num_longer):  # num trajectories have more than `step` tokens
        places = last[:num] - step
        running = flat[places] + discount * running[:num]
        flat[places] = running
    return np.split(flat, lengths.cumsum()[:-1]) if len(gains) else []


# ── whiten ────────────────────────────────────────────────────────────────────────────────────
# Whitening of the numbers of all tokens of a step to mean 0 and variance 1.

VARIANCE_EPSILON = 1e-8
"""Added to the variance, so that a step of nearly equal numbers does not explode."""


def whitened(values: Advantages) -> Advantages:
    """
    Subtract the mean over all tokens of the step and divide by their standard deviation.

        (x - mean(x)) / sqrt(var(x) + 1e-8),    var with N - 1 in the denominator

    Args:
        values: [T] for each trajectory of the step. If all are equal, and so of one token or none, the result is
            exactly zero.
    """
    flat = np.concatenate([np.zeros(0), *values])
    if (flat == flat[:1]).all():  # the mean of equal floats may be off by one bit, and zero must be zero
        return [np.zeros(len(part)) for part in values]
    mean, scale = flat.mean(), 1.0 / np.sqrt(flat.var(ddof=1) + VARIANCE_EPSILON)
    return [(part - mean) * scale for part in values]


# ── gae ───────────────────────────────────────────────────────────────────────────────────────
# Generalized advantage estimation with a critic.
#
#     rewards, values ─▶ temporal differences d_t ─▶ discounted sum Â ─┬─▶ + values ─▶ value targets of the critic
#                                                                     └─▶ whitened ─▶ advantages


def gae(outcomes: Sequence[Outcome], *, gamma: float = 1.0, lam: float = 1.0) -> Advantages:
    """
    Discounted sum of the critic's temporal differences, whitened over the step.

        d_t = r_t + gamma V_{t+1} - V_t,    Â_t = d_t + gamma lam Â_{t+1},    A = whiten(Â)

    After the last token V_{t+1} is 0. Compares no group.

    Args:
        outcomes: The whole step, with values.
        gamma: Discount per token.
        lam: 0 relies on the critic after one token, 1 on the rewards to the end.

    Source:
        Schulman et al. 2016, arXiv:1506.02438, eq. 16.
    """
    return whitened(_unwhitened(outcomes, gamma, lam))


def value_targets(outcomes: Sequence[Outcome], *, gamma: float = 1.0, lam: float = 1.0) -> list[Floats]:
    """
    [T] targets of the critic for each trajectory: ``Â_t + V_t``, with Â before whitening. Arguments as for `gae`.

    With ``lam`` 1 the targets are the returns: the critic's own values cancel.
    """
    unwhitened = _unwhitened(outcomes, gamma, lam)
    return [part + outcome.per_token("values", name="gae") for part, outcome in zip(unwhitened, outcomes, strict=True)]


def _unwhitened(outcomes: Sequence[Outcome], gamma: float, lam: float) -> list[Floats]:
    """[T] Â for each trajectory."""
    differences = []
    for outcome in outcomes:
        values = outcome.per_token("values", name="gae")
        next_values = np.append(values, 0.0)[1:]
        differences.append(outcome.rewards + gamma * next_values - values)
    return discounted(differences, gamma * lam)


# ── gdpo ──────────────────────────────────────────────────────────────────────────────────────
# Separate normalization of several rewards, so that the one with the largest scale does not dominate.


def gdpo(outcomes: Sequence[Outcome], *, reward_weights: Mapping[str, float]) -> Advantages:
    """
    Normalize each reward over its group, sum with weights, whiten over the step.

        A_i^k = (r_i^k - mean(r^k)) / (std(r^k) + 1e-6),    A = whiten(sum_k w_k A^k)

    Reads metrics of the verdicts; penalties on tokens have no effect.

    Args:
        reward_weights: Weights of metrics by name; ``reward`` is the reward of the verdict.

    Source:
        Liu et al. 2026, arXiv:2601.05242.
    """
    if not reward_weights:
        raise AsyncrlError("gdpo compares metrics of the verdicts; name some in algorithm.reward_weights")
    combined = np.zeros(len(outcomes))
    for key, weight in reward_weights.items():

        def normalized(group: list[Outcome], key: str = key) -> Floats:
            return standardized(np.array([_reward(outcome, key) for outcome in group], dtype=np.float64))

        combined += weight * per_group(outcomes, normalized)
    return whitened(on_every_token(outcomes, combined))


def _reward(outcome: Outcome, key: str) -> float:
    rewards = {**outcome.metrics, "reward": outcome.reward}
    if key not in rewards:
        raise ConfigError(
            f"algorithm.reward_weights names {key!r}, but a verdict of group {outcome.group_id} has only "
            f"{', '.join(rewards)}; the reward function must return it"
        )
    return rewards[key]


# ── reinforce ─────────────────────────────────────────────────────────────────────────────────
# Returns, whitened over all tokens of the step or compared with a greedy answer.
#
# With whitening, a group of equal rewards has nonzero advantages unless the whole step is equal.


def reinforce_plus_plus(outcomes: Sequence[Outcome], *, gamma: float = 1.0) -> Advantages:
    """
    Discounted return at each token, whitened over the step. Compares no group.

        G_t = r_t + gamma G_{t+1},    A = whiten(G)

    Source:
        Hu et al. 2025, arXiv:2501.03262.
    """
    returns = discounted([outcome.rewards for outcome in outcomes], gamma)
    return whitened(returns)


def reinforce_plus_plus_baseline(outcomes: Sequence[Outcome]) -> Advantages:
    """
    Reward minus the mean of the group, on each token, whitened over the step. A group of one keeps its reward.

        A = whiten(s_i - mean(s))

    Source:
        Hu et al. 2025, arXiv:2501.03262.
    """
    return whitened(dr_grpo(outcomes))


def remax(outcomes: Sequence[Outcome]) -> Advantages:
    """
    Return at a token minus the reward of the greedy answer to the same prompt. Compares no group.

        A_t = sum_{u >= t} r_u - b,    b the reward of the greedy answer

    Source:
        Li et al. 2023, arXiv:2310.10505.
    """
    returns = discounted([outcome.rewards for outcome in outcomes], 1.0)
    baselines = [outcome.greedy_reward(name="remax") for outcome in outcomes]
    return [part - baseline for part, baseline in zip(returns, baselines, strict=True)]


# ── token baseline ────────────────────────────────────────────────────────────────────────────
# Baseline per token from the returns of the group at the same position.
#
# Each trajectory of the group is weighted by the squared gradient norm of its tokens so far, with respect to the
# logits, which gives the baseline of least variance at every token.

WEIGHT_EPSILON = 1e-8
"""Added to the sum of weights: the baseline is 0 where every trajectory was certain."""


def optimal_token_baseline(outcomes: Sequence[Outcome]) -> Advantages:
    """
    Return at a token minus the weighted mean return over the trajectories of the group that reach this position.

        w_t = 1 - 2 p_t + sum_v p_v^2    (times the squared importance weight, if there are any)
        W_t = sum_{u <= t} w_u,    A_it = G_it - sum_j G_jt W_jt / (sum_j W_jt + 1e-8)

    The baseline is 0 at positions that only one trajectory reaches, so also for a group of one.

    Source:
        arXiv:2602.07078.
    """
    returns = discounted([outcome.rewards for outcome in outcomes], 1.0)
    weights = [_weights(outcome) for outcome in outcomes]
    advantages: list[Floats] = [np.zeros(0)] * len(outcomes)
    for places in groups(outcomes).values():
        baseline = _baseline([returns[place] for place in places], [weights[place] for place in places])
        for place in places:
            advantages[place] = returns[place] - baseline[: outcomes[place].length]
    return advantages


def _weights(outcome: Outcome) -> Floats:
    """[T] squared norm of the gradient with respect to the logits, summed over all tokens so far."""
    logprobs = outcome.per_token("logprobs", name="optimal_token_baseline")
    sum_pi_squared = outcome.per_token("sum_pi_squared", name="optimal_token_baseline")
    weights: Floats = 1.0 - 2.0 * np.exp(logprobs) + sum_pi_squared
    if outcome.importance is not None:
        weights = weights * outcome.importance.astype(np.float64) ** 2
    return weights.cumsum()


def _baseline(returns: Sequence[Floats], weights: Sequence[Floats]) -> Floats:
    """[longest T] of one group; zero at positions that only one trajectory reaches."""
    lengths = sorted([0, *(len(part) for part in returns)])
    second_longest, longest = lengths[-2:]
    weighted, total = np.zeros(longest), np.full(longest, WEIGHT_EPSILON)
    for part, weight in zip(returns, weights, strict=True):
        weighted[: len(part)] += part * weight
        total[: len(part)] += weight
    baseline: Floats = weighted / total
    baseline[second_longest:] = 0.0
    return baseline


# ── resolve ───────────────────────────────────────────────────────────────────────────────────
# Advantage estimators by the name in ``algorithm.advantage``: built-in ones and custom functions.
#
#     "grpo" ─────────┐
#     "file.py:name" ─┼─ resolve_advantage ─▶ Estimator: the function, the settings it reads, the fields it needs
#     "module:name" ──┘
#
# An estimator is ``def name(outcomes, *, <settings>)``: it returns [T] advantages for each trajectory of a step, in
# the order of the outcomes. Its keyword arguments are settings of ``[algorithm]``, and options of its own. Built-in
# ones are listed in `asyncrl.config.catalogue`.

SETTING = "algorithm.advantage"
AdvantageFunction = Callable[..., Advantages]
"""``estimate(outcomes, *, settings)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator:
    """An advantage estimator, ready to be called."""

    function: AdvantageFunction
    settings: Mapping[str, Any]
    """Keyword arguments of the function: name to default, `asyncrl.plug_in.REQUIRED` where there is none."""
    needs: frozenset[Need] = frozenset()
    """Fields of an `Outcome` that must be computed for it."""


def resolve_advantage(name: str, options: Mapping[str, Any] | None = None) -> Estimator:
    """
    Load the estimator that ``algorithm.advantage`` names.

    Args:
        name: A built-in name, ``file.py:name`` (from the working directory), or ``package.module:name``. A custom
            function that needs more than rewards lists the fields in an attribute: ``name.needs = {"values"}``.
        options: Keyword arguments of a custom function: ``algorithm.advantage_options``.

    Raises:
        ConfigError: The name, file or function does not exist, it is not an estimator, or an option is not an argument
            of it.
    """
    entry, options = estimator_entry(name), options or {}
    function = load_function(entry.function, setting=SETTING)
    settings = settings_of(
        function,
        takes="outcomes",
        known=Algorithm.__struct_fields__,
        path=entry.function,
        setting=SETTING,
        options=options,
    )
    if is_path(name):
        function, needs = _checked(partial(function, **options), name), _needs(function, name)
    else:
        needs = frozenset(entry.needs)
    each = of_each_seat(function, compares_group=entry.compares_group)
    return Estimator(function=each, settings=settings, needs=needs)


def _needs(function: AdvantageFunction, name: str) -> frozenset[Need]:
    needs: frozenset[Need] = frozenset(getattr(function, "needs", ()))
    if unknown := sorted(needs - set(get_args(Need))):
        raise ConfigError(
            f"{SETTING} {name!r} needs {', '.join(unknown)}, but there is only {', '.join(get_args(Need))}"
        )
    return needs


def _checked(function: AdvantageFunction, name: str) -> AdvantageFunction:
    """The function with a check of its return value: one array [T] of finite numbers for each trajectory."""

    def estimate(outcomes: Sequence[Outcome], **settings: Any) -> Advantages:
        with blamed(name, setting=SETTING, ours=__file__):
            returned = function(outcomes, **settings)
        try:
            advantages = [np.asarray(part, dtype=np.float64) for part in returned]
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{SETTING} {name!r} must return an array of numbers for each trajectory: {error}"
            ) from error
        _refuse_misshapen(advantages, outcomes, name)
        return advantages

    return estimate


def _refuse_misshapen(advantages: list[Floats], outcomes: Sequence[Outcome], name: str) -> None:
    if len(advantages) != len(outcomes):
        raise ConfigError(f"{SETTING} {name!r} returned {len(advantages)} arrays for {len(outcomes)} trajectories")
    for place, (part, outcome) in enumerate(zip(advantages, outcomes, strict=True)):
        if part.shape != (outcome.length,):
            raise ConfigError(
                f"{SETTING} {name!r} returned an array of shape {list(part.shape)} for trajectory {place}, "
                f"expected [{outcome.length}], one number per token"
            )
        if not np.isfinite(part).all():
            wrong = part[~np.isfinite(part)][0]
            raise ConfigError(f"{SETTING} {name!r} returned {wrong} for trajectory {place}, expected finite numbers")
