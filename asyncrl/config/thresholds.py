"""
What the strings of ``[algorithm.correction]`` say, as numbers. No tensor is known here: a config is checked without.

    importance = "token"                 importance_threshold = "0.5_5.0"         ─▶ Importance
    rejection = "token_k1,seq_max_k2"    rejection_threshold = "0.6_1.6,0.4"      ─▶ Rejection, Rejection

Importance weights are bounded above (``2.0``), or there is a band of them that counts (``0.5_5.0``). A rejection by k1
has a band of ratios, sampler to trainer, and compares logarithms; one number x is the band from 1/x to x. One by k2 or
k3, which are never negative, has an upper bound.
"""

from math import inf, isfinite, log
from typing import Literal, NamedTuple

from msgspec import Struct

from asyncrl.config.sections import Correction
from asyncrl.errors import ConfigError

SIGNED, UNSIGNED = ("k1", "k2", "k3"), ("k2", "k3")
SCOPES = {"token": SIGNED, "seq_sum": SIGNED, "seq_mean": SIGNED, "seq_max": UNSIGNED}
REJECTIONS = tuple(f"{scope}_{divergence}" for scope, divergences in SCOPES.items() for divergence in divergences)
"""Every rejection there is."""

IMPORTANCE_THRESHOLD = "2.0"
"""Where none is given."""

SECTION = "algorithm.correction"


class Importance(Struct, frozen=True, kw_only=True):
    """How tokens are weighted."""

    level: Literal["token", "sequence"]
    low: float | None = None
    """Weights below count nothing, and those above ``high`` neither; None cuts them to ``high`` instead."""
    high: float
    normalize: bool = False


class Rejection(Struct, frozen=True, kw_only=True):
    """What is left out of the loss: tokens or sequences whose divergence lies outside ``[low, high]``."""

    option: str
    """One of `REJECTIONS`."""
    low: float
    """Of the divergence: for k1 the logarithm of a ratio, else -inf."""
    high: float

    @property
    def scope(self) -> str:
        """``token``, ``seq_sum``, ``seq_mean`` or ``seq_max``."""
        return self.option.rpartition("_")[0]

    @property
    def divergence(self) -> str:
        """``k1``, ``k2`` or ``k3``."""
        return self.option.rpartition("_")[2]


class Thresholds(NamedTuple):
    """All that a correction does."""

    importance: Importance | None
    rejections: tuple[Rejection, ...]
    """All have to be passed."""


def thresholds(correction: Correction) -> Thresholds:
    """
    The numbers of a correction without a preset.

    Raises:
        ConfigError: A rejection or a threshold cannot be understood, or they do not match in number.
    """
    return Thresholds(_importance(correction), _rejections(correction))


def _importance(correction: Correction) -> Importance | None:
    if correction.importance == "none":
        return None
    key, text = "importance_threshold", str(correction.importance_threshold or IMPORTANCE_THRESHOLD)
    low, high = _band(key, text) if "_" in text else (None, _positive(key, text))
    return Importance(level=correction.importance, low=low, high=high, normalize=correction.importance_normalize)


def _rejections(correction: Correction) -> tuple[Rejection, ...]:
    options, bounds = _parts(correction.rejection), _parts(str(correction.rejection_threshold))
    for option in options:
        if option not in REJECTIONS:
            raise ConfigError(f"{SECTION}.rejection: {option!r} is none of {', '.join(REJECTIONS)}")
    if len(set(options)) < len(options):
        raise ConfigError(f"{SECTION}.rejection is {correction.rejection!r}: each may stand there once")
    if options and len(bounds) not in (1, len(options)):
        raise ConfigError(
            f"{SECTION}.rejection_threshold: expected one for each of {', '.join(options)}, or one for all, "
            f"got {len(bounds)}"
        )
    if len(bounds) == 1:
        bounds *= len(options)
    return tuple(_rejection(option, text) for option, text in zip(options, bounds, strict=False))


def _rejection(option: str, text: str) -> Rejection:
    key = "rejection_threshold"
    if not option.endswith("k1"):
        if "_" in text:
            raise ConfigError(f"{SECTION}.{key} is {text!r}: {option} has an upper bound and no lower one")
        return Rejection(option=option, low=-inf, high=_positive(key, text))
    low, high = _band(key, text) if "_" in text else _around_one(key, text)
    return Rejection(option=option, low=log(low), high=log(high))


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")] if text.strip() else []


def _band(key: str, text: str) -> tuple[float, float]:
    low, _, high = text.partition("_")
    band = _positive(key, low), _positive(key, high)
    if band[0] > band[1]:
        raise ConfigError(f"{SECTION}.{key} is {text!r}: the lower bound is above the upper one")
    return band


def _around_one(key: str, text: str) -> tuple[float, float]:
    ratio = _positive(key, text)
    if ratio < 1:
        raise ConfigError(f"{SECTION}.{key} is {text!r}, which stands for 1/x to x: use at least 1, or a band")
    return 1 / ratio, ratio


def _positive(key: str, text: str) -> float:
    try:
        number = 0.0 if "_" in text else float(text)  # Python reads an underscore as part of a number
    except ValueError:
        number = 0.0
    if not (isfinite(number) and number > 0):
        raise ConfigError(f"{SECTION}.{key}: expected a positive number or a band such as 0.5_5.0, got {text!r}")
    return number
