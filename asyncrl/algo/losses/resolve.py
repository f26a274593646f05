"""
Losses by the name in ``algorithm.loss``: built-in ones (`asyncrl.config.catalogue`) and custom functions.

A custom loss is a function in a file. Its keyword arguments are settings that it reads, and options of its own:

    # my.py, with algorithm.loss = "my.py:tempered" and algorithm.loss_options.power = 0.8
    def tempered(tokens, *, clip_high=0.3, power=1.0):
        ratio = (power * (tokens.logprobs - tokens.old_logprobs)).exp()
        return -tokens.advantages * ratio.clamp(max=1 + clip_high)
"""

from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any

from torch import Tensor

from asyncrl.algo.losses.selection import Selection
from asyncrl.algo.losses.tokens import Loss, LossFunction, PolicyLoss, Tokens
from asyncrl.config.catalogue import loss_entry
from asyncrl.config.sections.algorithm import Algorithm
from asyncrl.errors import ConfigError
from asyncrl.plug_in import blamed, is_path, load_function, settings_of

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
