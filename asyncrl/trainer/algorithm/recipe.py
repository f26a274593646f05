"""
What ``[algorithm]`` says, as functions: the parts a step is made of, each with the settings it reads.

    algorithm.advantage ─▶ estimator      whole step, on the host
    algorithm.correction ─▶ correct       whole step (decoupled), or a micro-batch at a time (bypass)
    algorithm.loss ─▶ loss                a micro-batch at a time
    algorithm.aggregation ─▶ weigh        of each trajectory
    algorithm.kl ─▶ kl                    in the loss or in the reward
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from asyncrl.algo.advantages.gae import value_targets
from asyncrl.algo.advantages.table import resolve_advantage
from asyncrl.algo.aggregate import AGGREGATIONS, Totals
from asyncrl.algo.correction.correct import Correct
from asyncrl.algo.kl import resolve_kl
from asyncrl.algo.losses.table import resolve_loss
from asyncrl.algo.outcomes import Floats, Outcome
from asyncrl.config.algorithm import SETTINGS
from asyncrl.config.presets import resolved
from asyncrl.config.sections import Algorithm, Config, Critic
from asyncrl.errors import ConfigError
from asyncrl.plug_in import REQUIRED

LOGPROBS, REFERENCE, VALUES, SUM_PI_SQUARED = "logprobs", "ref_logprobs", "values", "sum_pi_squared"
"""Numbers for every token that may be wanted of the policies a step begins with."""


class Recipe:
    """
    One configuration's algorithm.

    Args:
        config: Its ``algorithm``, and ``sampling.max_tokens`` as the default of ``aggregation_norm``.

    Raises:
        ConfigError: A plug-in cannot be loaded, a setting is missing, or nothing reads one that is set.
    """

    def __init__(self, config: Config) -> None:
        algorithm = config.algorithm
        self._algorithm = algorithm
        self.estimator = resolve_advantage(algorithm.advantage)
        self.loss = resolve_loss(algorithm.loss)
        self.kl = resolve_kl(algorithm.kl)
        self.correct = Correct(algorithm.correction)
        self.is_decoupled = resolved(algorithm.correction).mode == "decoupled"
        """Ratios are against the policy the step begins with, not the one that sampled."""
        self.advantages = partial(self.estimator.function, **_settings(algorithm, self.estimator.settings))
        self.value_targets: Callable[[Sequence[Outcome]], list[Floats]] = partial(
            value_targets, **_settings(algorithm, {"gamma": 1.0, "lam": 1.0})
        )
        self.losses = partial(self.loss.function, **_settings(algorithm, self.loss.settings))
        self.select = (
            partial(self.loss.select.function, **_settings(algorithm, self.loss.select.settings))
            if self.loss.select
            else None
        )
        """Which tokens the loss treats apart; None if it has no such."""
        self._aggregation = algorithm.aggregation or self.loss.aggregation or "token-mean"
        self._norm = algorithm.aggregation_norm or float(config.sampling.max_tokens)
        self._refuse_unread(config)

    @property
    def has_reference(self) -> bool:
        """There is a policy the one in training is held to."""
        return self._algorithm.kl_coef > 0

    @property
    def penalises_reward(self) -> bool:
        """The KL to the reference is taken from the reward."""
        return self.has_reference and self._algorithm.kl_in == "reward"

    @property
    def needs_all(self) -> bool:
        """Trajectories with advantage zero have a gradient all the same."""
        regularises = self._algorithm.entropy_coef > 0 or (self.has_reference and self._algorithm.kl_in == "loss")
        return regularises or not self.loss.is_zero_without_advantage

    @property
    def wanted(self) -> set[str]:
        """Columns to compute before a step begins."""
        names: set[str] = {name for name in (LOGPROBS, VALUES, SUM_PI_SQUARED) if name in self.estimator.needs}
        if self.is_decoupled or self.select or self.penalises_reward:
            names.add(LOGPROBS)
        if self.has_reference:
            names.add(REFERENCE)
        return names

    @property
    def averages_trajectories(self) -> bool:
        """A token's weight depends on how many of its trajectory count."""
        return self._aggregation == "seq-mean-token-mean"

    def weigh(self, lengths: Collection[int]) -> Callable[[int], float]:
        """
        What a token of a trajectory weighs in the loss, given the trajectory's length.

        Args:
            lengths: Of all trajectories of the mini-batch.
        """
        totals = Totals(sum(lengths), len(lengths), self._norm)
        weight = AGGREGATIONS[self._aggregation]
        return lambda length: weight(length, totals)

    def _refuse_unread(self, config: Config) -> None:
        """What a function of one's own reads is known only now."""
        select = self.loss.select.settings if self.loss.select else {}
        has_critic = VALUES in self.wanted
        read = {*self.estimator.settings, *self.loss.settings, *select, *(("gamma", "lam") if has_critic else ())}
        unread = [f"algorithm.{name}" for name in sorted(_given(config.algorithm, SETTINGS - read))]
        if config.critic != Critic() and not has_critic:
            unread.append("[critic]")
        if unread:
            raise ConfigError(
                f"{unread[0]} is not read with algorithm.advantage={config.algorithm.advantage!r} and "
                f"loss={config.algorithm.loss!r}; remove it"
            )


def _given(algorithm: Algorithm, names: Collection[str]) -> dict[str, Any]:
    """Those that are set."""
    values = {name: getattr(algorithm, name) for name in names}
    return {name: value for name, value in values.items() if value is not None and value != {}}


def _settings(algorithm: Algorithm, known: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are set; the others keep the defaults of whatever reads them."""
    given = _given(algorithm, known)
    for name, default in known.items():
        if default is REQUIRED and name not in given:
            raise ConfigError(f"algorithm.{name} must be set with what is chosen in [algorithm], and has no default")
    return given
