"""
Estimators by the name in ``algorithm.advantage``, and those that a person wrote.

    "grpo" ─────────┐
    "file.py:name" ─┼─ resolve_advantage ─▶ Estimator: the function, the settings it reads, what it needs
    "module:name" ──┘

An estimator is ``def name(outcomes, *, <settings>)``: of the outcomes of a step it makes [T] advantages of each
trajectory, in their order. Its keyword arguments are named like settings of ``[algorithm]``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from asyncrl.algo.advantages.gae import gae
from asyncrl.algo.advantages.gdpo import gdpo
from asyncrl.algo.advantages.greedy_baseline import remax
from asyncrl.algo.advantages.group_baselines import dr_grpo, gpg, grpo, grpo_passk, opo, rloo
from asyncrl.algo.advantages.needs import Need
from asyncrl.algo.advantages.reinforce import reinforce_plus_plus, reinforce_plus_plus_baseline
from asyncrl.algo.advantages.token_baseline import optimal_token_baseline
from asyncrl.algo.outcomes import Advantages, Floats, Outcome
from asyncrl.config.sections import Algorithm
from asyncrl.errors import ConfigError
from asyncrl.plug_in import blamed, hint, is_path, load_function, settings_of

AdvantageFunction = Callable[..., Advantages]
"""``estimate(outcomes, *, settings)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator:
    """An estimator and what goes with it."""

    function: AdvantageFunction
    settings: Mapping[str, Any]
    """Its keyword arguments: name to default, `asyncrl.plug_in.REQUIRED` where there is none."""
    needs: frozenset[Need] = frozenset()
    """Fields of an `Outcome` that it reads and that somebody has to compute for it."""
    needs_group: bool = False
    """It compares siblings: a group of one makes no sense."""
    counts_penalties: bool = True
    """Penalties on tokens, such as a KL in the reward, make a difference."""


def resolve_advantage(name: str) -> Estimator:
    """
    The estimator that ``algorithm.advantage`` names.

    Args:
        name: A built-in name, ``file.py:name`` (from the working directory), or ``package.module:name``. A person's
            function that needs more than scores has them in an attribute: ``name.needs = {"values"}``.

    Raises:
        ConfigError: There is no such name, file or function, or it is no estimator.
    """
    if name in ADVANTAGES:
        return ADVANTAGES[name]
    if not is_path(name):
        raise ConfigError(
            f"unknown algorithm.advantage {name!r}: {hint(name, ADVANTAGES)} (or path/to/file.py:name, or "
            f"package.module:name)"
        )
    function = load_function(name, setting="algorithm.advantage")
    settings = _settings(function, name)
    return Estimator(function=_checked(function, name), settings=settings, needs=_needs(function, name))


def _settings(function: AdvantageFunction, name: str) -> Mapping[str, Any]:
    known = Algorithm.__struct_fields__
    return settings_of(function, takes="outcomes", known=known, path=name, setting="algorithm.advantage")


def _needs(function: AdvantageFunction, name: str) -> frozenset[Need]:
    needs: frozenset[Need] = frozenset(getattr(function, "needs", ()))
    if unknown := sorted(needs - set(get_args(Need))):
        raise ConfigError(
            f"algorithm.advantage {name!r} needs {', '.join(unknown)}, but there is only {', '.join(get_args(Need))}"
        )
    return needs


def _checked(function: AdvantageFunction, name: str) -> AdvantageFunction:
    """The same, and what it returns is looked at before anybody trains on it."""

    def estimate(outcomes: Sequence[Outcome], **settings: Any) -> Advantages:
        with blamed(name, setting="algorithm.advantage", ours=__file__):
            returned = function(outcomes, **settings)
        try:
            advantages = [np.asarray(part, dtype=np.float64) for part in returned]
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"algorithm.advantage {name!r} must return an array of numbers for each trajectory: {error}"
            ) from error
        _refuse_misshapen(advantages, outcomes, name)
        return advantages

    return estimate


def _refuse_misshapen(advantages: list[Floats], outcomes: Sequence[Outcome], name: str) -> None:
    if len(advantages) != len(outcomes):
        raise ConfigError(
            f"algorithm.advantage {name!r} returned {len(advantages)} arrays for {len(outcomes)} trajectories"
        )
    for place, (part, outcome) in enumerate(zip(advantages, outcomes, strict=True)):
        if part.shape != (outcome.length,):
            raise ConfigError(
                f"algorithm.advantage {name!r} returned an array of shape {list(part.shape)} for trajectory {place}, "
                f"expected [{outcome.length}], one number a token"
            )
        if not np.isfinite(part).all():
            wrong = part[~np.isfinite(part)][0]
            raise ConfigError(
                f"algorithm.advantage {name!r} returned {wrong} for trajectory {place}, expected finite numbers"
            )


def _built_in(function: AdvantageFunction, *needs: Need, compares: bool = False, penalties: bool = True) -> Estimator:
    return Estimator(
        function=function,
        settings=_settings(function, function.__name__),
        needs=frozenset(needs),
        needs_group=compares,
        counts_penalties=penalties,
    )


_TOKEN_BASELINE = _built_in(optimal_token_baseline, "logprobs", "sum_pi_squared", compares=True)

ADVANTAGES: Mapping[str, Estimator] = {
    "grpo": _built_in(grpo, compares=True),
    "dr_grpo": _built_in(dr_grpo, compares=True),
    "grpo_passk": _built_in(grpo_passk, compares=True),
    "rloo": _built_in(rloo, compares=True),
    "opo": _built_in(opo, compares=True),
    "gpg": _built_in(gpg, compares=True),
    "gdpo": _built_in(gdpo, compares=True, penalties=False),
    "reinforce_plus_plus": _built_in(reinforce_plus_plus),
    "reinforce_plus_plus_baseline": _built_in(reinforce_plus_plus_baseline, compares=True),
    "remax": _built_in(remax, "baseline"),
    "gae": _built_in(gae, "values"),
    "optimal_token_baseline": _TOKEN_BASELINE,
    "tir_optimal_token_baseline": _TOKEN_BASELINE,
}
"""By name. The last two are one: tokens of tools, which make the difference elsewhere, are in no array here."""
