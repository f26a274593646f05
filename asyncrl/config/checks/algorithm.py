"""
Checks of ``[algorithm]`` across its settings.

A setting that the chosen estimator and loss do not read is refused rather than ignored. Settings of custom functions
are checked when the functions are loaded.
"""

from math import inf

from asyncrl.config.catalogue import (
    ADVANTAGES,
    LOSSES,
    SETTINGS,
    aggregation_path,
    estimator_entry,
    kl_path,
    loss_entry,
)
from asyncrl.config.clipping import WIDE, is_widened
from asyncrl.config.config import Config
from asyncrl.config.correction import preset, resolved, thresholds
from asyncrl.config.sections.algorithm import Algorithm, Correction
from asyncrl.errors import ConfigError
from asyncrl.plug_in import is_path

MAX_WEIGHT = 10.0
"""Importance weights with a larger bound count as unbounded."""


def check_algorithm(config: Config) -> None:
    """Raise `ConfigError` for the first setting found that contradicts another or would be ignored."""
    algorithm = config.algorithm
    _check_options(algorithm)
    _check_settings(algorithm)
    _check_group(config)
    _check_aggregation(algorithm)
    _check_kl(algorithm)
    _check_kl_horizon(config)
    _check_correction(algorithm)
    _check_anchor(config)
    if algorithm.dual_clip is not None and 0 < algorithm.dual_clip <= 1:
        raise ConfigError(
            f"algorithm.dual_clip is {algorithm.dual_clip:g}: at or below 1 it would cut the loss of an unchanged "
            f"policy; use a value above 1, or 0 to switch it off"
        )


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


def _check_options(algorithm: Algorithm) -> None:
    for key, name in (("advantage", algorithm.advantage), ("loss", algorithm.loss)):
        if (options := getattr(algorithm, f"{key}_options")) and not is_path(name):
            raise ConfigError(
                f"algorithm.{key}_options.{min(options)} is an argument of a custom function, but algorithm.{key} is "
                f"{name!r}, which reads settings of [algorithm]; remove it"
            )


def _check_settings(algorithm: Algorithm) -> None:
    estimator, loss = estimator_entry(algorithm.advantage), loss_entry(algorithm.loss)
    given = {name for name in SETTINGS if getattr(algorithm, name) not in (None, {})}
    for name, entry in ((algorithm.advantage, estimator), (algorithm.loss, loss)):
        for required in entry.required:
            if required not in given:
                raise ConfigError(f"algorithm.{required} must be set with {name!r}: it has no default")
    if is_path(algorithm.advantage) or is_path(algorithm.loss):
        return
    if unread := sorted(given - estimator.reads - loss.reads):
        readers = [name for name, entry in {**ADVANTAGES, **LOSSES}.items() if unread[0] in entry.reads]
        raise ConfigError(
            f"algorithm.{unread[0]} is not read with advantage={algorithm.advantage!r} and loss={algorithm.loss!r}, "
            f"only with {', '.join(readers)}; remove it"
        )


def _check_group(config: Config) -> None:
    name = config.algorithm.advantage
    if config.schedule.group_size == 1 and estimator_entry(name).compares_group:
        raise ConfigError(
            f"schedule.group_size is 1, but algorithm.advantage={name!r} compares the trajectories of a group; use at "
            f"least 2"
        )


def _check_aggregation(algorithm: Algorithm) -> None:
    aggregation = algorithm.aggregation
    if aggregation:
        aggregation_path(aggregation)
    if (only := loss_entry(algorithm.loss).aggregation) and aggregation not in ("", only):
        raise ConfigError(
            f"algorithm.aggregation is {aggregation!r}, but loss={algorithm.loss!r} is defined per trajectory and "
            f"needs {only!r}; remove it"
        )
    if algorithm.aggregation_norm and aggregation != "seq-mean-token-sum-norm":
        raise ConfigError(
            f"algorithm.aggregation_norm is only read with aggregation='seq-mean-token-sum-norm', "
            f"not {aggregation or 'token-mean'!r}; remove it"
        )


def _check_kl(algorithm: Algorithm) -> None:
    kl_path(algorithm.kl)
    plain = Algorithm()
    if not algorithm.kl_coef:
        for key in ("kl", "kl_in", "kl_target"):
            if getattr(algorithm, key) != getattr(plain, key):
                raise ConfigError(f"algorithm.{key} is only read with algorithm.kl_coef above 0; set it")
    _check_kl_reward(algorithm)
    if algorithm.kl_in != "loss" and not estimator_entry(algorithm.advantage).counts_penalties:
        raise ConfigError(
            f"algorithm.kl_in={algorithm.kl_in!r} has no effect with advantage={algorithm.advantage!r} on rewards: "
            f"it compares metrics of the verdict; use kl_in='loss'"
        )
    if algorithm.kl_in == "loss" and algorithm.kl_target:
        raise ConfigError("algorithm.kl_target is only read with kl_in='reward' or 'both'; remove it")
    if not algorithm.kl_target and algorithm.kl_horizon != plain.kl_horizon:
        raise ConfigError("algorithm.kl_horizon is only read with kl_target; remove it")


def _check_kl_reward(algorithm: Algorithm) -> None:
    plain, is_both = Algorithm(), algorithm.kl_in == "both"
    for key in ("kl_reward_coef", "kl_reward"):
        if not is_both and getattr(algorithm, key) != getattr(plain, key):
            raise ConfigError(f"algorithm.{key} is only read with kl_in='both'; remove it, or set kl_in")
    if is_both and not algorithm.kl_reward_coef:
        raise ConfigError(
            "algorithm.kl_in is 'both', but the KL in the reward has no weight; set algorithm.kl_reward_coef, or "
            "kl_in='loss'"
        )
    key = "kl_reward" if is_both else "kl"
    kl_path(getattr(algorithm, key), key)
    if algorithm.kl_in != "loss" and getattr(algorithm, key).endswith("+"):
        raise ConfigError(
            f"algorithm.{key} is {getattr(algorithm, key)!r}: the '+' chooses a gradient, and a reward has none; "
            f"remove it"
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
