"""Policy losses, by the name in ``algorithm.loss``: functions of `Tokens` that return a `PolicyLoss`."""

from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor

from asyncrl.algo.loss_tokens import (
    CLIP_HIGH,
    CLIP_LOW,
    FLOAT32_LOG_RATIO,
    Loss,
    LossFunction,
    PolicyLoss,
    Selection,
    Tokens,
)
from asyncrl.config.catalogue import loss_entry
from asyncrl.config.sections.algorithm import Algorithm
from asyncrl.errors import ConfigError
from asyncrl.plug_in import blamed, is_path, load_function, settings_of

# ── clipped ───────────────────────────────────────────────────────────────────────────────────
# Clipped surrogate with two bounds and, at negative advantages, a third (dual clip).
#
#                  loss/|A|                                    loss/|A|
#     A > 0   ──────╲                          A < 0              c ┬────────  dual clip
#                    ╲                                              ╱
#                     ╲________ 1 + clip_high                      ╱
#                                              1 - clip_low ──────╱
#               ratio ──▶                               ratio ──▶
#
# PPO, GRPO and DAPO use it with different bounds.


def clipped(tokens: Tokens, *, clip_low: float = 0.2, clip_high: float = 0.28, dual_clip: float = 3.0) -> PolicyLoss:
    """
    Policy-gradient loss of each token, flat where the ratio has left the bounds in the direction of the advantage.

        r = exp(logprobs - old_logprobs)
        u = max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))
        loss = u where A >= 0,  min(u, -A dual_clip) where A < 0

    Args:
        dual_clip: Bound of a bad token's loss in units of -A, above 1; 0 switches it off.

    Returns:
        Metrics ``clip_fraction``: the ratio has left the bounds in the direction of the advantage;
        ``dual_clip_fraction``: the third bound applies.

    Source:
        Schulman et al. 2017, arXiv:1707.06347, eq. 7 (the clip); Yu et al. 2025, arXiv:2503.14476 (two bounds, and
        their defaults); Ye et al. 2020, arXiv:1912.09729 (the third bound, and its default).
    """
    advantages, ratio = tokens.advantages, tokens.log_ratio().exp()
    unclipped = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    losses = torch.maximum(unclipped, bounded)
    is_dual_clipped = torch.zeros_like(losses, dtype=torch.bool)
    if dual_clip:
        ceiling = -advantages * dual_clip
        is_dual_clipped = (advantages < 0) & (ceiling < losses)
        losses = torch.where(is_dual_clipped, ceiling, losses)
    return PolicyLoss(losses, {"clip_fraction": bounded > unclipped, "dual_clip_fraction": is_dual_clipped})


# ── cispo ─────────────────────────────────────────────────────────────────────────────────────
# Policy gradient weighted by a clipped ratio: every token has a gradient.
#
# The clipped surrogate gives no gradient to rare tokens that became likely, which often change the course of
# reasoning. Here the clip is on the weight of the gradient of log π.


def cispo(tokens: Tokens, *, clip_low: float = 10.0, clip_high: float = 0.2) -> PolicyLoss:
    """
    REINFORCE with truncated importance weights.

        w = stop_gradient(clip(exp(logprobs - old_logprobs), 1 - clip_low, 1 + clip_high))
        loss = -w A logprobs

    With ``clip_low`` of 1 or more there is no lower bound.

    Returns:
        Metric ``clip_fraction``: the weight is clipped.

    Source:
        MiniMax 2025, arXiv:2506.13585 (CISPO). The paper has no lower bound and does not state its upper one:
        both defaults are those of verl's example.
    """
    ratio = tokens.log_ratio().exp().detach()
    weights = ratio.clamp(1 - clip_low, 1 + clip_high)
    return PolicyLoss(-weights * tokens.advantages * tokens.logprobs, {"clip_fraction": weights != ratio})


# ── covariance ────────────────────────────────────────────────────────────────────────────────
# Losses that treat the tokens apart that would reduce entropy most.
#
# Entropy falls where advantage and log-probability covary. Tokens with a high covariance are selected over the whole
# step, before any update, by the functions of `asyncrl.algo.loss_tokens`.


def clip_cov(tokens: Tokens, *, clip_low: float = CLIP_LOW, clip_high: float = CLIP_HIGH) -> PolicyLoss:
    """
    Clipped loss, zero on selected tokens.

        r = exp(logprobs - old_logprobs)
        loss = 0 where selected, else max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))

    Returns:
        Metrics ``clip_fraction``, as in `clipped`, and ``selected_fraction``.

    Source:
        Cui et al. 2025, arXiv:2505.22617 (Clip-Cov).
    """
    advantages, ratio = tokens.advantages, tokens.log_ratio(FLOAT32_LOG_RATIO).exp()
    unclipped = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    losses = torch.maximum(unclipped, bounded).masked_fill(tokens.selected, 0)
    return PolicyLoss(losses, {"clip_fraction": bounded > unclipped, "selected_fraction": tokens.selected})


def kl_cov(tokens: Tokens, *, cov_kl_coef: float = 1.0) -> PolicyLoss:
    """
    Importance-weighted policy gradient without a clip, plus the distance from the old policy on selected tokens.

        d = logprobs - old_logprobs
        loss = -A exp(d) + cov_kl_coef |d| where selected, else -A exp(d)

    Returns:
        Metric ``selected_fraction``.

    Source:
        Cui et al. 2025, arXiv:2505.22617 (KL-Cov); default: its experiments.
    """
    distance = tokens.log_ratio(FLOAT32_LOG_RATIO)
    penalty = cov_kl_coef * distance.abs().masked_fill(~tokens.selected, 0)
    return PolicyLoss(penalty - tokens.advantages * distance.exp(), {"selected_fraction": tokens.selected})


# ── dppo ──────────────────────────────────────────────────────────────────────────────────────
# Policy gradient without the tokens whose probability changed too much, instead of those whose ratio did.
#
# From 0.00001 to 0.001 the ratio is a hundred but the distribution hardly changes; from 0.99 to 0.8 the ratio is
# within every clip but a fifth of the distribution has moved. The divergence is that of two outcomes: this token or
# any other.

EPS = 1e-8
"""Keeps the logarithm of "any other token" finite for a certain token."""


def dppo_tv(tokens: Tokens, *, clip_low: float = 0.15, clip_high: float = 0.15, ratio_cap: float = 20.0) -> PolicyLoss:
    """
    Policy gradient where total variation is within a bound in the direction of the advantage.

        p = exp(logprobs),  q = exp(old_logprobs)
        keep = p - q <= clip_high where A > 0,  p - q >= -clip_low elsewhere
        loss = -A · stop_gradient(min(p / q, ratio_cap)) · logprobs where kept, else 0

    Returns:
        Metrics ``clip_fraction``: not kept; ``ratio_cap_fraction``: kept, with the weight clipped.

    Source:
        arXiv:2602.04879 (DPPO-Binary-TV; sec. 5.4 on the cap); default bounds: its experiments. The default cap is the
        one that verl's code names but never applies: its configuration always has a ``clip_ratio_c``, 3 if not set.
    """
    with torch.no_grad():
        gain = tokens.logprobs.exp() - tokens.old_logprobs.exp()
        is_kept = torch.where(tokens.advantages > 0, gain <= clip_high, gain >= -clip_low)
    return _loss(tokens, is_kept, ratio_cap)


def dppo_kl(tokens: Tokens, *, clip_low: float = 0.05, clip_high: float = 0.05, ratio_cap: float = 20.0) -> PolicyLoss:
    """
    Like `dppo_tv`, with the KL divergence of the two outcomes instead of total variation.

        kl = q log(q / p) + (1 - q) log((1 - q) / (1 - p))
        keep = kl <= clip_high or p <= q where A > 0,  kl <= clip_low or p >= q elsewhere

    Source:
        arXiv:2602.04879 (DPPO-Binary-KL); default bounds: verl's example.
    """
    with torch.no_grad():
        new, old = tokens.logprobs.exp(), tokens.old_logprobs.exp()
        others = (1 - old) * ((1 - old + EPS) / (1 - new + EPS)).log()
        kl = old * (tokens.old_logprobs - tokens.logprobs) + others
        is_free_up, is_free_down = (kl <= clip_high) | (new <= old), (kl <= clip_low) | (new >= old)
        is_kept = torch.where(tokens.advantages > 0, is_free_up, is_free_down)
    return _loss(tokens, is_kept, ratio_cap)


def _loss(tokens: Tokens, is_kept: Tensor, ratio_cap: float) -> PolicyLoss:
    """Importance-weighted policy gradient of kept tokens, and the metrics of both losses."""
    ratio = tokens.log_ratio().exp().detach()
    losses = -tokens.advantages * ratio.clamp(max=ratio_cap) * tokens.logprobs
    metrics = {"clip_fraction": ~is_kept, "ratio_cap_fraction": is_kept & (ratio > ratio_cap)}
    return PolicyLoss(losses.masked_fill(~is_kept, 0), metrics)


# ── dro ───────────────────────────────────────────────────────────────────────────────────────
# Policy gradient with a quadratic penalty on the log-ratio: no ratio, no clip, for data of any age.


def dro(tokens: Tokens, *, dro_beta: float) -> PolicyLoss:
    """
    REINFORCE with a quadratic penalty.

        loss = -(A logprobs - dro_beta/2 (logprobs - old_logprobs)²)

    The minimum is at ``logprobs - old_logprobs = A / dro_beta``, also for a token with advantage zero.

    Args:
        dro_beta: Weight of the penalty. Its scale is that of the advantages, so there is no default.

    Source:
        Richemond et al. 2024, arXiv:2405.19107, the policy's loss, per token.
    """
    penalty = (tokens.logprobs - tokens.old_logprobs).square()
    return PolicyLoss(0.5 * dro_beta * penalty - tokens.advantages * tokens.logprobs)


# ── gmpo ──────────────────────────────────────────────────────────────────────────────────────
# Geometric instead of arithmetic mean of a trajectory's clipped ratios.
#
# One outlier among T tokens changes the mean by its T-th root, so the bounds may be wider.


def gmpo(tokens: Tokens, *, clip_low: float = 0.4, clip_high: float = 0.4) -> PolicyLoss:
    """
    One loss per trajectory, equal on all its tokens.

        d = logprobs - old_logprobs
        c = sgn(A) min(sgn(A) d, sgn(A) clip(d, -clip_low, clip_high))      of each token
        loss = -mean_t(A) exp(mean_t c)                                    of the trajectory

    Its average over tokens, then over trajectories, is the mean of the losses of trajectories.

    Returns:
        Metric ``clip_fraction``: the token's log-ratio is clipped.

    Source:
        Zhao et al. 2025, arXiv:2507.20673; defaults: its (e^-0.4, e^0.4).
    """
    sequences, sign = tokens.sequences, tokens.advantages.sign()
    plain = tokens.log_ratio(FLOAT32_LOG_RATIO)
    unclipped, bounded = sign * plain, sign * plain.clamp(-clip_low, clip_high)
    ratio = sequences.mean(sign * torch.minimum(unclipped, bounded)).exp()
    losses = sequences.spread(-sequences.mean(tokens.advantages) * ratio)
    return PolicyLoss(losses, {"clip_fraction": bounded < unclipped})


# ── gspo ──────────────────────────────────────────────────────────────────────────────────────
# One ratio per trajectory: the clip applies to whole trajectories, like the reward.
#
# Its bounds are about a hundred times narrower than those of tokens, because the mean of T log-ratios varies less.

MAX_SEQUENCE_LOG_RATIO = 10.0
"""Upper bound of the log-ratio of a trajectory."""


def gspo(tokens: Tokens, *, clip_low: float = 3e-4, clip_high: float = 4e-4) -> PolicyLoss:
    """
    Clipped loss with the geometric mean of a trajectory's ratios instead of the ratio of each token.

        s = exp(mean_t (logprobs - old_logprobs))            of the trajectory
        r = s · exp(logprobs - stop_gradient(logprobs))      value of s, gradient of the token
        loss = max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))

    Averaged over tokens, then over trajectories, its gradient is that of the clipped ratio of trajectories.

    Returns:
        Metric ``clip_fraction``, as in `clipped`, equal within a trajectory.

    Source:
        Zheng et al. 2025, arXiv:2507.18071 (GSPO-token); defaults: its experiments.
    """
    advantages, logprobs = tokens.advantages, tokens.logprobs
    means = tokens.sequences.mean((logprobs - tokens.old_logprobs).detach())
    own = logprobs - logprobs.detach()  # exactly 0, with a gradient
    ratio = (tokens.sequences.spread(means) + own).clamp(max=MAX_SEQUENCE_LOG_RATIO).exp()
    unclipped = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    return PolicyLoss(torch.maximum(unclipped, bounded), {"clip_fraction": bounded > unclipped})


# ── reinforce ─────────────────────────────────────────────────────────────────────────────────
# Plain policy gradient without ratio and clip. GPG is this loss with its own advantages.


def reinforce(tokens: Tokens) -> PolicyLoss:
    """
    ``-A logprobs``. ``old_logprobs`` are not read; off-policy data needs the weights of ``[algorithm.correction]``.

    Source:
        Williams 1992, "Simple statistical gradient-following algorithms"; Chu et al. 2025, arXiv:2504.02546 (GPG).
    """
    return PolicyLoss(-tokens.advantages * tokens.logprobs)


# ── sapo ──────────────────────────────────────────────────────────────────────────────────────
# Soft gate instead of a clip: the weight of a token falls smoothly with the distance of its ratio from 1.


def sapo(tokens: Tokens, *, tau_pos: float = 1.0, tau_neg: float = 1.05) -> PolicyLoss:
    """
    Policy-gradient loss with a sigmoid of the ratio, whose slope at ratio 1 is that of the ratio itself.

        r = exp(logprobs - old_logprobs)
        loss = -A · 4/τ · sigmoid(τ (r - 1)),   τ = tau_pos where A > 0, else tau_neg

    Args:
        tau_pos: Steepness of the gate at a positive advantage.
        tau_neg: Steepness otherwise. The gradient of a bad token spreads over the whole vocabulary and is less stable.

    Source:
        Gao et al. 2025, arXiv:2511.20347; defaults: its experiments.
    """
    tau = torch.full_like(tokens.advantages, tau_neg).masked_fill(tokens.advantages > 0, tau_pos)
    gate = torch.sigmoid(tau * (tokens.log_ratio().exp() - 1)) * (4 / tau)
    return PolicyLoss(-tokens.advantages * gate)


# ── resolve ───────────────────────────────────────────────────────────────────────────────────
# Losses by the name in ``algorithm.loss``: built-in ones (`asyncrl.config.catalogue`) and custom functions.
#
# A custom loss is a function in a file. Its keyword arguments are settings that it reads, and options of its own:
#
#     # my.py, with algorithm.loss = "my.py:tempered" and algorithm.loss_options.power = 0.8
#     def tempered(tokens, *, clip_high=0.3, power=1.0):
#         ratio = (power * (tokens.logprobs - tokens.old_logprobs)).exp()
#         return -tokens.advantages * ratio.clamp(max=1 + clip_high)

SETTING = "algorithm.loss"


def resolve_loss(name: str, options: Mapping[str, Any] | None = None) -> Loss:
    """
    Load the loss that a configuration names.

    Args:
        name: A built-in name, ``file.py:name`` (from the working directory), or ``package.module:name``.
        options: Keyword arguments of a custom function: ``algorithm.loss_options``.

    Raises:
        ConfigError: The name, file or function does not exist, it is not a function of tokens and settings, or an
            option is not an argument of it.
    """
    entry = loss_entry(name)
    function, settings = _load(entry.function, "tokens", options)
    return Loss(
        function=_checked(function, name) if is_path(name) else function,
        settings=settings,
        entry=entry,
        select=Selection(*_load(entry.select, "step")) if entry.select else None,
    )


def _load(
    path: str, takes: str, options: Mapping[str, Any] | None = None
) -> tuple[Callable[..., Any], Mapping[str, Any]]:
    function, options = load_function(path, setting=SETTING), options or {}
    known = Algorithm.__struct_fields__
    settings = settings_of(function, takes=takes, known=known, path=path, setting=SETTING, options=options)
    return partial(function, **options) if options else function, settings


def _checked(function: Callable[..., Any], path: str) -> LossFunction:
    """The function with a check of its return value: a tensor of the wrong shape would be broadcast silently."""

    @wraps(function)
    def loss(tokens: Tokens, **settings: Any) -> PolicyLoss:
        with blamed(path, setting=SETTING, ours=__file__):
            result = function(tokens, **settings)
        result = result if isinstance(result, PolicyLoss) else PolicyLoss(result)
        for what, values in {"losses": result.losses, **result.metrics}.items():
            if not isinstance(values, Tensor) or values.shape != tokens.logprobs.shape:
                raise ConfigError(
                    f"{SETTING} {path!r}: {what} is {_shown(values)}, expected a tensor of one number for each of the "
                    f"{len(tokens.logprobs)} tokens"
                )
        if tokens.logprobs.requires_grad and not result.losses.requires_grad:
            raise ConfigError(f"{SETTING} {path!r}: losses have no gradient; compute them from tokens.logprobs")
        return result

    return loss


def _shown(value: object) -> str:
    return f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
