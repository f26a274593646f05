"""
Configured algorithm as functions, each bound to the settings it reads.

    algorithm.advantage ─▶ advantages         over the whole step, on the host
    algorithm.correction ─▶ correct           over the whole step (decoupled) or a micro-batch (bypass)
    algorithm.loss ─▶ losses                  over a micro-batch
    algorithm.aggregation ─▶ token_weights    per trajectory
    algorithm.kl ─▶ kl, reward_kl             in the loss, in the reward, or in both
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from asyncrl.algo.advantages import resolve_advantage, value_targets
from asyncrl.algo.aggregate import Totals, resolve_aggregation
from asyncrl.algo.correction import Correct
from asyncrl.algo.kl import resolve_kl
from asyncrl.algo.losses import resolve_loss
from asyncrl.algo.outcomes import Floats, Outcome
from asyncrl.config.catalogue import SETTINGS
from asyncrl.config.config import Config
from asyncrl.config.correction import resolved, with_clip_high
from asyncrl.config.sections.algorithm import Algorithm
from asyncrl.config.sections.trainer import Critic
from asyncrl.errors import ConfigError
from asyncrl.plug_in import REQUIRED

LOGPROBS, REFERENCE, VALUES, SUM_PI_SQUARED = "logprobs", "ref_logprobs", "values", "sum_pi_squared"
"""Names of per-token numbers that an algorithm may need from the models before a step."""
TOKEN_REWARDS = "token_rewards"
"""Name of the rewards of tokens, which are in the trajectories."""


class Recipe:
    """
    Functions of one configured algorithm. The longest trajectory is the default of ``aggregation_norm``.

    Raises:
        ConfigError: A plug-in cannot be loaded, a setting is missing, or one is set that nothing reads.
    """

    def __init__(self, config: Config) -> None:
        algorithm = with_clip_high(config)
        self.estimator = resolve_advantage(algorithm.advantage, algorithm.advantage_options)
        self.loss = resolve_loss(algorithm.loss, algorithm.loss_options)
        self.kl = resolve_kl(algorithm.kl)
        self.reward_kl = resolve_kl(algorithm.kl_reward) if algorithm.kl_in == "both" else self.kl
        self.correct = Correct(algorithm.correction)
        self.mask_divergent = algorithm.correction.mask_divergent
        """Threshold of `asyncrl.algo.correction`, nats per token; 0 masks nothing."""
        self.sampler_kl_coef = algorithm.sampler_kl_coef
        """Weight of the KL to the policy that sampled."""
        self.is_decoupled = resolved(algorithm.correction).mode == "decoupled"
        """Ratios compare with the policy before the step, not with the one that sampled."""
        self.keeps_anchor = resolved(algorithm.correction).anchor == "publish"
        """True if the anchor is the policy published last, for all steps until the next publish."""
        self.reads_token_rewards = TOKEN_REWARDS in self.estimator.needs and config.environment.is_set
        """True if it matters at which turn of an episode a reward was given."""
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
        """Token selection of the loss; None if it has none."""
        self.has_reference = algorithm.kl_coef > 0
        self.penalises_reward = self.has_reference and algorithm.kl_in != "loss"
        """True if the KL to the reference is subtracted from the reward."""
        self.penalises_loss = self.has_reference and algorithm.kl_in != "reward"
        """True if the KL to the reference is added to the loss."""
        self.reward_kl_coef = algorithm.kl_reward_coef if algorithm.kl_in == "both" else algorithm.kl_coef
        """Initial weight of the KL in the reward."""
        self.wanted: set[str] = {name for name in (LOGPROBS, VALUES, SUM_PI_SQUARED) if name in self.estimator.needs}
        """Names of the per-token numbers that models compute before a step."""
        if self.is_decoupled or self.select or self.penalises_reward:
            self.wanted.add(LOGPROBS)
        if self.has_reference:
            self.wanted.add(REFERENCE)
        aggregation = algorithm.aggregation or self.loss.entry.aggregation or "token-mean"
        self.averages_trajectories = aggregation == "seq-mean-token-mean"
        """True if a token's weight depends on the number of kept tokens of its trajectory."""
        self._weigh = resolve_aggregation(aggregation)
        self._norm = algorithm.aggregation_norm or float(config.longest_written("train"))
        self._refuse_unread(config)

    def token_weights(self, lengths: Sequence[int], group_ids: Sequence[int]) -> list[float]:
        """Weight of a token of each trajectory of a mini-batch, given their ``lengths`` in kept tokens and groups."""
        group_tokens: Counter[int] = Counter()
        for length, group_id in zip(lengths, group_ids, strict=True):
            group_tokens[group_id] += length
        whole = Totals(sum(lengths), len(lengths), self._norm, len(group_tokens))
        return [
            self._weigh(length, replace(whole, group_tokens=group_tokens[group_id]))
            for length, group_id in zip(lengths, group_ids, strict=True)
        ]

    def _refuse_unread(self, config: Config) -> None:
        """Refuse settings that nothing reads; those of plug-in functions are known only once they are loaded."""
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
    """Settings among ``names`` that are set."""
    values = {name: getattr(algorithm, name) for name in names}
    return {name: value for name, value in values.items() if value is not None and value != {}}


def _settings(algorithm: Algorithm, known: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments for the settings that are set; the others keep the function's defaults."""
    given = _given(algorithm, known)
    for name, default in known.items():
        if default is REQUIRED and name not in given:
            raise ConfigError(f"algorithm.{name} must be set: the chosen [algorithm] reads it, and it has no default")
    return given
