"""
Checks of ``[algorithm]`` across its settings.

A setting that the chosen estimator and loss do not read is refused rather than ignored. Settings of custom functions
are checked when the functions are loaded.
"""

from math import inf

from asyncrl.config.catalogue import (
    LOSSES,
    estimator_entry,
    loss_entry,
)
from asyncrl.config.config import Config
from asyncrl.config.correction import WIDE, is_widened, preset, resolved, thresholds
from asyncrl.config.sections.algorithm import Algorithm, Correction
from asyncrl.errors import ConfigError
from asyncrl.plug_in import is_path

MAX_WEIGHT = 10.0
"""Importance weights with a larger bound count as unbounded."""


def check_algorithm(config: Config) -> None:
    """Raise `ConfigError` for the first setting found that contradicts another or would be ignored."""
    algorithm = config.algorithm
    algorithm.check_options()
    algorithm.check_read()
    _check_group(config)
    algorithm.check_aggregation()
    algorithm.check_kl()
    _check_kl_horizon(config)
    _check_correction(algorithm)
    _check_anchor(config)
    algorithm.check_clip()


def algorithm_advice(config: Config) -> list[str]:
    """Sentences of advice on old trajectories: the default of their clip, and importance weights without a bound."""
    algorithm, staleness = config.algorithm, config.schedule.staleness_bound
    if is_widened(config):
        age = config.schedule.staleness
        return [
            f"schedule.staleness is {age if age == 'auto' else f'{age:g}'}, so the default of algorithm.clip_high is "
            f"{WIDE:g}: with .28 old trajectories would teach slowly; set it to have another bound"
        ]
    if staleness < 1 or is_path(algorithm.loss) or resolved(algorithm.correction).rejection:
        return []
    if (bound := _weight_bound(algorithm)) <= MAX_WEIGHT:
        return []
    weights = "no importance weights" if bound == inf else f"importance weights up to {bound:g}"
    return [
        f"algorithm.loss is {algorithm.loss!r} with {weights} and schedule.staleness is {staleness:g}: nothing keeps "
        f"old trajectories from dominating the loss, and such runs may collapse; use loss = 'clipped', or bound the "
        f"weights"
    ]


def _weight_bound(algorithm: Algorithm) -> float:
    """Largest weight of a token's gradient; infinite if old tokens are trained on as if they were new."""
    if algorithm.loss == "cispo":
        return 1 + (algorithm.clip_high or 0.0)
    if loss_entry(algorithm.loss).function != LOSSES["reinforce"].function:
        return 0.0
    importance = thresholds(resolved(algorithm.correction)).importance
    return inf if importance is None else importance.high


def _check_group(config: Config) -> None:
    name = config.algorithm.advantage
    if config.schedule.group_size == 1 and estimator_entry(name).compares_group:
        raise ConfigError(
            f"schedule.group_size is 1, but algorithm.advantage={name!r} compares the trajectories of a group; use at "
            f"least 2"
        )


def _check_kl_horizon(config: Config) -> None:
    """A step changes the coefficient by up to ``0.2 * trajectories / horizon`` of it, which must stay below 1."""
    algorithm, num_trajectories = config.algorithm, config.schedule.groups_per_step * config.schedule.group_size
    if algorithm.kl_target and num_trajectories >= 5 * algorithm.kl_horizon:
        raise ConfigError(
            f"algorithm.kl_horizon is {algorithm.kl_horizon}, but a step has {num_trajectories} trajectories and could "
            f"reduce the weight of the KL to 0; use more than {num_trajectories // 5}"
        )


def _check_correction(algorithm: Algorithm) -> None:
    name, correction = algorithm.correction.preset, resolved(algorithm.correction)
    if name and (loss := preset(name).loss) not in ("", algorithm.loss):
        raise ConfigError(
            f"algorithm.correction.preset={name!r} needs algorithm.loss={loss!r}, not {algorithm.loss!r}; set it"
        )
    _check_thresholds(correction)
    if correction.mode == "decoupled":
        return
    # A custom loss may do without the ratio: the configuration cannot tell.
    if correction.importance != "none" and loss_entry(algorithm.loss).has_ratio and not is_path(algorithm.loss):
        raise ConfigError(
            f"algorithm.correction.importance={correction.importance!r} would weight the sampler's tokens twice: with "
            f"mode='bypass' the ratio in loss={algorithm.loss!r} weights them already; use mode='decoupled', or "
            f"loss='reinforce'"
        )
    if correction.importance_normalize:
        raise ConfigError(
            "algorithm.correction.importance_normalize needs the mean weight over a step, but with mode='bypass' "
            "weights change during the step; use mode='decoupled'"
        )


def _check_anchor(config: Config) -> None:
    correction, steps = resolved(config.algorithm.correction), config.schedule.steps_per_publish
    if correction.anchor == "step":
        return
    if correction.mode != "decoupled":
        raise ConfigError(
            "algorithm.correction.anchor='publish' is only read with mode='decoupled': in bypass mode ratios are taken "
            "against the policy that sampled; remove it"
        )
    if steps == 1:
        raise ConfigError(
            "algorithm.correction.anchor='publish' has no effect with schedule.steps_per_publish=1: every step begins "
            "with published weights; remove it"
        )


def _check_thresholds(correction: Correction) -> None:
    if correction.importance == "none":
        for key in ("importance_threshold", "importance_normalize"):
            if getattr(correction, key):
                raise ConfigError(
                    f"algorithm.correction.{key} is only read with importance='token' or 'sequence'; remove it"
                )
    if bool(correction.rejection) != bool(correction.rejection_threshold):
        given, missing = "rejection", "rejection_threshold"
        if not correction.rejection:
            given, missing = missing, given
        raise ConfigError(f"algorithm.correction.{given} is only read with {missing}; set it, or remove both")
    thresholds(correction)
