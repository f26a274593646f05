"""
Catalogue of the algorithms by the names they have in ``[algorithm]``.

    "gspo" ─▶ LossEntry: import path of the function, the settings it reads, flags ─▶ asyncrl.algo imports it when used

An entry holds import paths and no functions, because a configuration is checked in processes without torch. A new loss
is a function in asyncrl/algo/losses.py and an entry here; a new setting is also a field of `Algorithm`, unset by
default. The defaults of settings are in the signatures of the functions.
"""

from collections.abc import Mapping
from typing import Literal, TypeVar

from msgspec import Struct

from asyncrl.errors import ConfigError
from asyncrl.plug_in import hint, is_path

T = TypeVar("T")
Need = Literal["values", "logprobs", "sum_pi_squared", "baseline", "token_rewards"]
"""
Fields of an `asyncrl.algo.outcomes.Outcome` that are computed only for an estimator that needs them. Without an
[environment] there are no ``token_rewards``: all of a reward is at the end.
"""


class CatalogueEntry(Struct, frozen=True):
    """A function and the settings of ``[algorithm]`` that are its keyword arguments."""

    function: str
    """``package.module:name``, or ``file.py:name`` for a custom function."""
    settings: tuple[str, ...] = ()
    """Settings with a default in the function's signature."""
    required: tuple[str, ...] = ()
    """Settings without a default."""

    @property
    def reads(self) -> frozenset[str]:
        """Names of all settings that the function reads."""
        return frozenset((*self.settings, *self.required))


class EstimatorEntry(CatalogueEntry, frozen=True, kw_only=True):
    """An advantage estimator."""

    needs: tuple[Need, ...] = ()
    compares_group: bool = False
    """Compares the trajectories of a group, and so needs at least two of them."""
    counts_penalties: bool = True
    """Reads token penalties such as a KL in the reward."""


class LossEntry(CatalogueEntry, frozen=True, kw_only=True):
    """A policy loss. ``settings`` includes those of its token selection."""

    select: str = ""
    """Import path of the function that selects tokens over the whole step; empty if the loss treats all alike."""
    aggregation: str = ""
    """The only aggregation the loss is defined for; empty allows any."""
    has_ratio: bool = True
    """Weights tokens by their ratio to ``old_logprobs``."""
    is_of_sequences: bool = False
    """One loss per trajectory: importance weights are averaged geometrically over it."""


_ADVANTAGES = "asyncrl.algo.advantages"
_TOKEN_BASELINE = EstimatorEntry(
    f"{_ADVANTAGES}:optimal_token_baseline",
    needs=("logprobs", "sum_pi_squared"),
    compares_group=True,
)

ADVANTAGES: Mapping[str, EstimatorEntry] = {
    "grpo": EstimatorEntry(f"{_ADVANTAGES}:grpo", compares_group=True),
    "dr_grpo": EstimatorEntry(f"{_ADVANTAGES}:dr_grpo", compares_group=True),
    "grpo_passk": EstimatorEntry(f"{_ADVANTAGES}:grpo_passk", compares_group=True),
    "rloo": EstimatorEntry(f"{_ADVANTAGES}:rloo", compares_group=True),
    "opo": EstimatorEntry(f"{_ADVANTAGES}:opo", compares_group=True),
    "gpg": EstimatorEntry(f"{_ADVANTAGES}:gpg", compares_group=True),
    "gdpo": EstimatorEntry(
        f"{_ADVANTAGES}:gdpo",
        required=("reward_weights",),
        compares_group=True,
        counts_penalties=False,
    ),
    "reinforce_plus_plus": EstimatorEntry(f"{_ADVANTAGES}:reinforce_plus_plus", ("gamma",), needs=("token_rewards",)),
    "reinforce_plus_plus_baseline": EstimatorEntry(f"{_ADVANTAGES}:reinforce_plus_plus_baseline", compares_group=True),
    "remax": EstimatorEntry(f"{_ADVANTAGES}:remax", needs=("baseline",)),
    "gae": EstimatorEntry(f"{_ADVANTAGES}:gae", ("gamma", "lam"), needs=("values", "token_rewards")),
    "optimal_token_baseline": _TOKEN_BASELINE,
    "tir_optimal_token_baseline": _TOKEN_BASELINE,
}
"""The last two differ in verl by the tokens of tools, which are in no array here, so they are one."""

_LOSSES = "asyncrl.algo.losses"
_CLIP = ("clip_low", "clip_high")
_BY_SEQUENCE = "seq-mean-token-mean"
_CLIPPED = LossEntry(f"{_LOSSES}:clipped", (*_CLIP, "dual_clip"))
_GMPO = LossEntry(f"{_LOSSES}:gmpo", _CLIP, aggregation=_BY_SEQUENCE, is_of_sequences=True)
_REINFORCE = LossEntry(f"{_LOSSES}:reinforce", has_ratio=False)

LOSSES: Mapping[str, LossEntry] = {
    "clipped": _CLIPPED,
    "vanilla": _CLIPPED,
    "gspo": LossEntry(f"{_LOSSES}:gspo", _CLIP, aggregation=_BY_SEQUENCE),
    "cispo": LossEntry(f"{_LOSSES}:cispo", _CLIP),
    "sapo": LossEntry(f"{_LOSSES}:sapo", ("tau_pos", "tau_neg"), aggregation=_BY_SEQUENCE),
    "gmpo": _GMPO,
    "geo_mean": _GMPO,
    "clip_cov": LossEntry(
        f"{_LOSSES}:clip_cov",
        (*_CLIP, "cov_ratio", "cov_low", "cov_high"),
        select="asyncrl.algo.loss_tokens:clip_cov_selection",
    ),
    "kl_cov": LossEntry(
        f"{_LOSSES}:kl_cov", ("cov_kl_coef", "cov_ratio"), select="asyncrl.algo.loss_tokens:kl_cov_selection"
    ),
    "dppo_tv": LossEntry(f"{_LOSSES}:dppo_tv", (*_CLIP, "ratio_cap")),
    "dppo_kl": LossEntry(f"{_LOSSES}:dppo_kl", (*_CLIP, "ratio_cap")),
    "dro": LossEntry(f"{_LOSSES}:dro", required=("dro_beta",), has_ratio=False),
    "gpg": _REINFORCE,
    "reinforce": _REINFORCE,
}
"""``vanilla`` and ``geo_mean`` are verl's names for ``clipped`` and ``gmpo``."""

AGGREGATIONS: Mapping[str, str] = {
    "token-mean": "asyncrl.algo.aggregate:token_mean",
    "token-sum": "asyncrl.algo.aggregate:token_sum",
    "seq-mean-token-sum": "asyncrl.algo.aggregate:seq_mean_token_sum",
    "seq-mean-token-sum-norm": "asyncrl.algo.aggregate:seq_mean_token_sum_norm",
    "seq-mean-token-mean": "asyncrl.algo.aggregate:seq_mean_token_mean",
    "prompt-mean": "asyncrl.algo.aggregate:prompt_mean",
}
KL_ESTIMATORS: Mapping[str, str] = {
    "k1": "asyncrl.algo.kl:k1",
    "kl": "asyncrl.algo.kl:k1",
    "abs": "asyncrl.algo.kl:absolute",
    "k2": "asyncrl.algo.kl:k2",
    "mse": "asyncrl.algo.kl:k2",
    "k3": "asyncrl.algo.kl:k3",
    "low_var_kl": "asyncrl.algo.kl:k3",
}
"""``kl``, ``mse`` and ``low_var_kl`` are verl's names. Each name may end in ``+``: `asyncrl.algo.kl.resolve_kl`."""

SETTINGS: frozenset[str] = frozenset().union(*(entry.reads for entry in (*ADVANTAGES.values(), *LOSSES.values())))
"""Settings of ``[algorithm]`` that only some estimators and losses read."""


_OR_PATH = " (or path/to/file.py:name, or package.module:name)"


def estimator_entry(name: str) -> EstimatorEntry:
    """Entry of ``algorithm.advantage``, with the defaults of all flags for a custom function, or `ConfigError`."""
    return EstimatorEntry(name) if is_path(name) else _find("advantage", name, ADVANTAGES, _OR_PATH)


def loss_entry(name: str) -> LossEntry:
    """Entry of ``algorithm.loss``, with the defaults of all flags for a custom function, or `ConfigError`."""
    return LossEntry(name) if is_path(name) else _find("loss", name, LOSSES, _OR_PATH)


def aggregation_path(name: str) -> str:
    """Import path of the function that ``algorithm.aggregation`` names, or `ConfigError`."""
    return _find("aggregation", name, AGGREGATIONS)


def kl_path(name: str, key: str = "kl") -> str:
    """Import path of the function that ``algorithm.kl``, or ``key``, names, without its ``+``, or `ConfigError`."""
    return _find(key, name.removesuffix("+"), KL_ESTIMATORS, " (any of them may end in '+')")


def _find(key: str, name: str, table: Mapping[str, T], also: str = "") -> T:
    if name not in table:
        raise ConfigError(f"algorithm.{key} is {name!r}: {hint(name, table)}{also}")
    return table[name]
