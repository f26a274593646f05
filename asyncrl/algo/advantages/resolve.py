"""
Advantage estimators by the name in ``algorithm.advantage``: built-in ones and custom functions.

    "grpo" ─────────┐
    "file.py:name" ─┼─ resolve_advantage ─▶ Estimator: the function, the settings it reads, the fields it needs
    "module:name" ──┘

An estimator is ``def name(outcomes, *, <settings>)``: it returns [T] advantages for each trajectory of a step, in the
order of the outcomes. Its keyword arguments are settings of ``[algorithm]``, and options of its own. Built-in ones are
listed in `asyncrl.config.catalogue`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import numpy as np

from asyncrl.algo.outcomes import Advantages, Floats, Outcome
from asyncrl.config.catalogue import Need, estimator_entry
from asyncrl.config.sections.algorithm import Algorithm
from asyncrl.errors import ConfigError
from asyncrl.plug_in import blamed, is_path, load_function, settings_of

SETTING = "algorithm.advantage"
AdvantageFunction = Callable[..., Advantages]
"""``estimate(outcomes, *, settings)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator:
    """An advantage estimator, ready to be called."""

    function: AdvantageFunction
    settings: Mapping[str, Any]
    """Its keyword arguments: name to default, `asyncrl.plug_in.REQUIRED` where there is none."""
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
        bound = _checked(partial(function, **options), name)
        return Estimator(function=bound, settings=settings, needs=_needs(function, name))
    return Estimator(function=function, settings=settings, needs=frozenset(entry.needs))


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
