"""
What ``[algorithm]`` may be: which settings each estimator and loss reads, and what goes with what.

A setting that what is chosen does not read is refused, not ignored: who sets it expects something to happen. The names
stand here once more because a configuration is checked where there is no torch; a test keeps them those of the code.
Functions of one's own are looked at when they are loaded.
"""

from collections.abc import Mapping

from asyncrl.config.sections import Algorithm, Config
from asyncrl.errors import ConfigError
from asyncrl.plug_in import hint, is_path

ADVANTAGES: Mapping[str, frozenset[str]] = {
    "grpo": frozenset(),
    "dr_grpo": frozenset(),
    "grpo_passk": frozenset(),
    "rloo": frozenset(),
    "opo": frozenset(),
    "gpg": frozenset(),
    "gdpo": frozenset({"reward_weights"}),
    "reinforce_plus_plus": frozenset({"gamma"}),
    "reinforce_plus_plus_baseline": frozenset(),
    "remax": frozenset(),
    "gae": frozenset({"gamma", "lam"}),
    "optimal_token_baseline": frozenset(),
    "tir_optimal_token_baseline": frozenset(),
}
"""Settings that each estimator reads."""
OF_ONE = ("reinforce_plus_plus", "remax", "gae")
"""Estimators that compare no siblings: a group may be one trajectory."""
WITHOUT_PENALTIES = ("gdpo",)
"""Estimators that see no KL in the reward: they compare the parts of the verdict."""

CLIP = frozenset({"clip_low", "clip_high"})
LOSSES: Mapping[str, frozenset[str]] = {
    "clipped": CLIP | {"dual_clip"},
    "vanilla": CLIP | {"dual_clip"},
    "gspo": CLIP,
    "cispo": CLIP,
    "sapo": frozenset({"tau_pos", "tau_neg"}),
    "gmpo": CLIP,
    "geo_mean": CLIP,
    "clip_cov": CLIP | {"cov_ratio", "cov_low", "cov_high"},
    "kl_cov": frozenset({"cov_kl_coef", "cov_ratio"}),
    "dppo_tv": CLIP | {"ratio_cap"},
    "dppo_kl": CLIP | {"ratio_cap"},
    "dro": frozenset({"dro_beta"}),
    "gpg": frozenset(),
    "reinforce": frozenset(),
}
"""Settings that each loss reads."""
BY_SEQUENCE = ("gspo", "sapo", "gmpo", "geo_mean")
"""Losses that are defined for one aggregation only."""
REQUIRED = {"gdpo": "reward_weights", "dro": "dro_beta"}
"""Settings without a default."""

SETTINGS = frozenset().union(*ADVANTAGES.values(), *LOSSES.values())
"""All that only some of them read."""
KL = ("k1", "kl", "abs", "k2", "mse", "k3", "low_var_kl")


def check_algorithm(config: Config) -> None:
    """
    Refuse what contradicts itself, or would be ignored.

    Raises:
        ConfigError: The first contradiction found.
    """
    algorithm = config.algorithm
    _check_names(algorithm)
    _check_settings(algorithm)
    _check_group(config)
    _check_aggregation(algorithm)
    _check_kl(algorithm)
    _check_kl_horizon(config)
    if algorithm.dual_clip is not None and 0 < algorithm.dual_clip <= 1:
        raise ConfigError(
            f"algorithm.dual_clip is {algorithm.dual_clip:g}: at or below 1 it would cut the loss of an unchanged "
            f"policy; use a value above 1, or 0 to switch it off"
        )


def _check_names(algorithm: Algorithm) -> None:
    for key, name, known in (
        ("advantage", algorithm.advantage, ADVANTAGES),
        ("loss", algorithm.loss, LOSSES),
        ("kl", algorithm.kl.removesuffix("+"), KL),
    ):
        if name not in known and (key == "kl" or not is_path(name)):
            own = "" if key == "kl" else " (or path/to/file.py:name, or package.module:name)"
            raise ConfigError(f"algorithm.{key} is {name!r}: {hint(name, known)}{own}")


def _check_settings(algorithm: Algorithm) -> None:
    chosen = (algorithm.advantage, algorithm.loss)
    given = {name for name in SETTINGS if getattr(algorithm, name) not in (None, {})}
    for name in chosen:
        if (required := REQUIRED.get(name)) and required not in given:
            raise ConfigError(f"algorithm.{required} must be set with {name!r}: it has no default")
    if any(map(is_path, chosen)):
        return  # What it reads is known when it is loaded.
    read = ADVANTAGES[algorithm.advantage] | LOSSES[algorithm.loss]
    if unread := sorted(given - read):
        readers = [name for name, settings in {**ADVANTAGES, **LOSSES}.items() if unread[0] in settings]
        raise ConfigError(
            f"algorithm.{unread[0]} is not read with advantage={algorithm.advantage!r} and loss={algorithm.loss!r}, "
            f"only with {', '.join(readers)}; remove it"
        )


def _check_group(config: Config) -> None:
    name = config.algorithm.advantage
    if config.schedule.group_size == 1 and name in ADVANTAGES and name not in OF_ONE:
        raise ConfigError(
            f"schedule.group_size is 1, but algorithm.advantage={name!r} compares the trajectories of a group; use at "
            f"least 2"
        )


def _check_aggregation(algorithm: Algorithm) -> None:
    aggregation = algorithm.aggregation
    if algorithm.loss in BY_SEQUENCE and aggregation not in ("", "seq-mean-token-mean"):
        raise ConfigError(
            f"algorithm.aggregation is {aggregation!r}, but loss={algorithm.loss!r} is one of trajectories, each of "
            f"which weighs the same; remove it"
        )
    if algorithm.aggregation_norm and aggregation != "seq-mean-token-sum-norm":
        raise ConfigError(
            f"algorithm.aggregation_norm is only read with aggregation='seq-mean-token-sum-norm', "
            f"not {aggregation or 'token-mean'!r}; remove it"
        )


def _check_kl(algorithm: Algorithm) -> None:
    plain = Algorithm()
    if not algorithm.kl_coef:
        for key in ("kl", "kl_in", "kl_target"):
            if getattr(algorithm, key) != getattr(plain, key):
                raise ConfigError(f"algorithm.{key} is only read with algorithm.kl_coef above 0; set it")
    if algorithm.kl_in == "reward" and algorithm.advantage in WITHOUT_PENALTIES:
        raise ConfigError(
            f"algorithm.kl_in='reward' has no effect with advantage={algorithm.advantage!r}, which compares the parts "
            f"of a verdict; use kl_in='loss'"
        )
    if algorithm.kl_in == "loss" and algorithm.kl_target:
        raise ConfigError("algorithm.kl_target is only read with kl_in='reward'; remove it")
    if not algorithm.kl_target and algorithm.kl_horizon != plain.kl_horizon:
        raise ConfigError("algorithm.kl_horizon is only read with kl_target; remove it")
    if algorithm.kl_in == "reward" and algorithm.kl.endswith("+"):
        raise ConfigError(
            f"algorithm.kl is {algorithm.kl!r}: the '+' chooses a gradient, and a reward has none; remove it"
        )


def _check_kl_horizon(config: Config) -> None:
    """A step moves the coefficient by up to a fifth of its share of the horizon, and must leave some of it."""
    algorithm, num_trajectories = config.algorithm, config.schedule.groups_per_step * config.schedule.group_size
    if algorithm.kl_target and num_trajectories >= 5 * algorithm.kl_horizon:
        raise ConfigError(
            f"algorithm.kl_horizon is {algorithm.kl_horizon}, but a step has {num_trajectories} trajectories: it could "
            f"take all of algorithm.kl_coef away; use more than {num_trajectories // 5}"
        )
