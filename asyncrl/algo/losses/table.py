"""
Losses by the name in ``algorithm.loss``: ours, verl's names for them, and functions that a person wrote.

A loss of one's own is a file, and says with its arguments what it reads:

    # my.py, with algorithm.loss = "my.py:tempered"
    def tempered(tokens, *, clip_high=0.3):
        ratio = (tokens.logprobs - tokens.old_logprobs).exp()
        return -tokens.advantages * ratio.clamp(max=1 + clip_high)
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any

from torch import Tensor

from asyncrl.algo.losses.cispo import cispo
from asyncrl.algo.losses.clip_cov import clip_cov
from asyncrl.algo.losses.clipped import clipped
from asyncrl.algo.losses.dppo import dppo_kl, dppo_tv
from asyncrl.algo.losses.dro import dro
from asyncrl.algo.losses.gmpo import gmpo
from asyncrl.algo.losses.gspo import gspo
from asyncrl.algo.losses.kl_cov import kl_cov
from asyncrl.algo.losses.reinforce import reinforce
from asyncrl.algo.losses.sapo import sapo
from asyncrl.algo.losses.selection import Selection, clip_cov_selection, kl_cov_selection
from asyncrl.algo.losses.tokens import Loss, LossFunction, PolicyLoss, Tokens
from asyncrl.config.sections import Algorithm
from asyncrl.errors import ConfigError
from asyncrl.plug_in import blamed, hint, is_path, load_function, settings_of

SETTING = "algorithm.loss"
BY_SEQUENCE = "seq-mean-token-mean"
"""Aggregation that gives every trajectory the same weight."""


def resolve_loss(name: str) -> Loss:
    """
    The loss that a configuration names.

    Args:
        name: One of `LOSSES`, or ``file.py:name``, or ``package.module:name``.

    Raises:
        ConfigError: There is none of that name, or it is not a function of tokens and settings.
    """
    if is_path(name):
        function = load_function(name, setting=SETTING)
        return replace(_loss(function, name), function=_checked(function, name))
    if name not in LOSSES:
        raise ConfigError(f"{SETTING} is {name!r}: {hint(name, LOSSES)}")
    return LOSSES[name]


def _loss(function: Callable[..., Any], path: str = "", **rest: Any) -> Loss:
    return Loss(function=function, settings=_settings(function, "tokens", path), **rest)


def _selection(function: Callable[..., Any]) -> Selection:
    return Selection(function=function, settings=_settings(function, "step"))


def _settings(function: Callable[..., Any], takes: str, path: str = "") -> Mapping[str, Any]:
    known = Algorithm.__struct_fields__
    return settings_of(function, takes=takes, known=known, path=path or function.__name__, setting=SETTING)


def _checked(function: Callable[..., Any], path: str) -> LossFunction:
    """The function, and a look at what it returns: a tensor of the wrong shape would be broadcast without a word."""

    @wraps(function)
    def loss(tokens: Tokens, **settings: Any) -> PolicyLoss:
        with blamed(path, setting=SETTING, ours=__file__):
            result = function(tokens, **settings)
        result = result if isinstance(result, PolicyLoss) else PolicyLoss(result)
        for what, values in {"losses": result.losses, **result.metrics}.items():
            if not isinstance(values, Tensor) or values.shape != tokens.logprobs.shape:
                raise ConfigError(
                    f"{SETTING} {path!r}: {what} is {_shown(values)}, expected a tensor of a number for each of the "
                    f"{len(tokens.logprobs)} tokens"
                )
        if tokens.logprobs.requires_grad and not result.losses.requires_grad:
            raise ConfigError(f"{SETTING} {path!r}: losses have no gradient; compute them from tokens.logprobs")
        return result

    return loss


def _shown(value: object) -> str:
    return f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


_CLIPPED = _loss(clipped, is_zero_without_advantage=True)
_GMPO = _loss(gmpo, aggregation=BY_SEQUENCE, is_of_sequences=True, is_zero_without_advantage=True)
_REINFORCE = _loss(reinforce, is_zero_without_advantage=True)

LOSSES: dict[str, Loss] = {
    "clipped": _CLIPPED,
    "vanilla": _CLIPPED,
    "gspo": _loss(gspo, aggregation=BY_SEQUENCE, is_zero_without_advantage=True),
    "cispo": _loss(cispo, is_zero_without_advantage=True),
    "sapo": _loss(sapo, aggregation=BY_SEQUENCE, is_zero_without_advantage=True),
    "gmpo": _GMPO,
    "geo_mean": _GMPO,
    "clip_cov": _loss(clip_cov, is_zero_without_advantage=True, select=_selection(clip_cov_selection)),
    "kl_cov": _loss(kl_cov, select=_selection(kl_cov_selection)),
    "dppo_tv": _loss(dppo_tv, is_zero_without_advantage=True),
    "dppo_kl": _loss(dppo_kl, is_zero_without_advantage=True),
    "dro": _loss(dro),
    "gpg": _REINFORCE,
    "reinforce": _REINFORCE,
}
"""Ours; ``vanilla`` and ``geo_mean`` are verl's names of two of them, the other names are the same there."""
