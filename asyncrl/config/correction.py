"""
Off-policy correction as configured in ``[algorithm.correction]`` (presets, and strings parsed to numbers), and the clip
of old trajectories.

    preset = "decoupled_geo_rs"          ─ resolved ───▶ Correction without a preset
    importance = "token"                 importance_threshold = "0.5_5.0"         ─ thresholds ─▶ Importance
    rejection = "token_k1,seq_max_k2"    rejection_threshold = "0.6_1.6,0.4"      ─ thresholds ─▶ Rejection, Rejection

Presets have verl's names; those on ``_mask`` are our own:

    decoupled_...   against the policy the step begins with; any loss
    bypass_...      against the policy that sampled: ppo_clip with the clipped loss, pg with reinforce, cispo
    ..._is, ..._tis truncated importance weights of tokens or sequences; icepop: a band of weights
    ..._geo_rs      rejects sequences by their geometric mean ratio; k3_rs: by their mean k3
    ..._mask        leaves divergent sequences of negative advantage out

Thresholds: importance weights have an upper bound (``2.0``) or a band (``0.5_5.0``). Rejection by k1 has a band of
ratios, sampler to trainer, and compares their logarithms; one number x is the band from 1/x to x. Rejection by k2 or
k3, which are never negative, has an upper bound.
"""

from math import inf, isfinite, log
from typing import Any, Literal, NamedTuple

from msgspec import Struct, structs
from msgspec.structs import replace

from asyncrl.config.catalogue import LOSSES, loss_entry
from asyncrl.config.config import Config
from asyncrl.config.sections.algorithm import Algorithm, Correction
from asyncrl.errors import ConfigError
from asyncrl.plug_in import hint, is_path

SECTION = "algorithm.correction"


class Preset(Struct, frozen=True):
    """A named correction."""

    correction: Correction
    loss: str = ""
    """The only ``algorithm.loss`` the preset may be used with; empty allows any."""


def _decoupled(**settings: Any) -> Preset:
    return Preset(Correction(mode="decoupled", **settings))


def _bypass(loss: str, **settings: Any) -> Preset:
    return Preset(Correction(mode="bypass", **settings), loss)


TOKEN_TIS = {"importance": "token", "importance_threshold": "2.0"}
SEQ_TIS = {"importance": "sequence", "importance_threshold": "2.0"}
TOKEN_ICEPOP = {"importance": "token", "importance_threshold": "0.5_5.0"}
SUM_RS = {"rejection": "seq_sum_k1", "rejection_threshold": "0.5_2.0"}
GEO_RS = {"rejection": "seq_mean_k1", "rejection_threshold": "0.999_1.001"}
K3_RS = {"rejection": "seq_mean_k3", "rejection_threshold": "0.01"}
MASK = {"mask_divergent": 0.1}

PRESETS = {
    "decoupled_token_is": _decoupled(**TOKEN_TIS),
    "decoupled_seq_is": _decoupled(**SEQ_TIS),
    "decoupled_token_icepop": _decoupled(**TOKEN_ICEPOP),
    "decoupled_seq_is_rs": _decoupled(**SEQ_TIS, **SUM_RS),
    "decoupled_geo_rs": _decoupled(**GEO_RS),
    "decoupled_geo_rs_seq_tis": _decoupled(**SEQ_TIS, **GEO_RS),
    "decoupled_geo_rs_token_tis": _decoupled(**TOKEN_TIS, **GEO_RS),
    "decoupled_k3_rs": _decoupled(**K3_RS),
    "decoupled_k3_rs_seq_tis": _decoupled(**SEQ_TIS, **K3_RS),
    "decoupled_k3_rs_token_tis": _decoupled(**TOKEN_TIS, **K3_RS),
    "bypass_ppo_clip": _bypass("clipped"),
    "bypass_ppo_clip_geo_rs": _bypass("clipped", **GEO_RS),
    "bypass_ppo_clip_k3_rs": _bypass("clipped", **K3_RS),
    "bypass_ppo_clip_mask": _bypass("clipped", **MASK),
    "bypass_cispo_mask": _bypass("cispo", **MASK),
    "bypass_pg_is": _bypass("reinforce", **SEQ_TIS),
    "bypass_pg_token_icepop": _bypass("reinforce", **TOKEN_ICEPOP),
    "bypass_pg_geo_rs": _bypass("reinforce", **GEO_RS),
    "bypass_pg_geo_rs_seq_tis": _bypass("reinforce", **SEQ_TIS, **GEO_RS),
    "bypass_pg_geo_rs_token_tis": _bypass("reinforce", **TOKEN_TIS, **GEO_RS),
}
PRESETS["sequence_tis_geometric_rs"] = PRESETS["decoupled_geo_rs_seq_tis"]


BESIDE = ("anchor", "mask_divergent")
"""Settings that may be given beside a preset, and then override its own."""


def preset(name: str) -> Preset:
    """Preset of that name; raises `ConfigError` if the name is unknown."""
    if name not in PRESETS:
        raise ConfigError(f"{SECTION}.preset: there is no preset {name!r}; {hint(name, PRESETS)}")
    return PRESETS[name]


def resolved(correction: Correction) -> Correction:
    """
    The correction with its preset replaced by the preset's settings; unchanged without a preset.

    Raises:
        ConfigError: The preset is unknown, or another setting is given beside it.
    """
    if not correction.preset:
        return correction
    chosen = preset(correction.preset)
    beside = {key: value for key in BESIDE if (value := getattr(correction, key)) != getattr(Correction(), key)}
    if correction != Correction(preset=correction.preset, **beside):
        plain, given = Correction(), structs.asdict(correction)
        others = [
            key for key, value in given.items() if key not in ("preset", *BESIDE) and value != getattr(plain, key)
        ]
        raise ConfigError(
            f"{SECTION}.preset={correction.preset!r} sets the whole section, but {', '.join(others)} "
            f"{'is' if len(others) == 1 else 'are'} set beside it; remove one or the other"
        )
    return structs.replace(chosen.correction, **beside)


SIGNED, UNSIGNED = ("k1", "k2", "k3"), ("k2", "k3")
SCOPES = {"token": SIGNED, "seq_sum": SIGNED, "seq_mean": SIGNED, "seq_max": UNSIGNED}
REJECTIONS = tuple(f"{scope}_{divergence}" for scope, divergences in SCOPES.items() for divergence in divergences)
IMPORTANCE_THRESHOLD = "2.0"
"""Default of ``importance_threshold``."""


class Importance(Struct, frozen=True, kw_only=True):
    """Importance weighting of tokens."""

    level: Literal["token", "sequence"]
    low: float | None = None
    """Lower end of a band outside which weights are 0; None clips weights to ``high`` instead."""
    high: float
    normalize: bool = False


class Rejection(Struct, frozen=True, kw_only=True):
    """Removes tokens or sequences from the loss if their divergence lies outside ``[low, high]``."""

    option: str
    """One of `REJECTIONS`."""
    low: float
    """Lower bound of the divergence: for k1 the logarithm of a ratio, else -inf."""
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
    """A correction in numbers."""

    importance: Importance | None
    rejections: tuple[Rejection, ...]
    """A token is kept if every rejection keeps it."""


def thresholds(correction: Correction) -> Thresholds:
    """
    Parse a correction that has no preset.

    Raises:
        ConfigError: A rejection or a threshold is invalid, or their numbers do not match.
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
        raise ConfigError(f"{SECTION}.rejection is {correction.rejection!r}: name each rejection once")
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
    if "_" in text:
        low, high = _band(key, text)
    elif (high := _positive(key, text)) < 1:
        raise ConfigError(f"{SECTION}.{key} is {text!r}, which stands for 1/x to x: use at least 1, or a band")
    else:
        low = 1 / high
    return Rejection(option=option, low=log(low), high=log(high))


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")] if text.strip() else []


def _band(key: str, text: str) -> tuple[float, float]:
    low, _, high = text.partition("_")
    band = _positive(key, low), _positive(key, high)
    if band[0] > band[1]:
        raise ConfigError(f"{SECTION}.{key} is {text!r}: the lower bound is above the upper one")
    return band


def _positive(key: str, text: str) -> float:
    try:
        number = 0.0 if "_" in text else float(text)  # Python accepts an underscore inside a number
    except ValueError:
        number = 0.0
    if not (isfinite(number) and number > 0):
        raise ConfigError(f"{SECTION}.{key}: expected a positive number or a band such as 0.5_5.0, got {text!r}")
    return number


# ── clipping ──────────────────────────────────────────────────────────────────────────────────
# Upper bound of the clipped loss for old trajectories.
#
#     ratio    1 ──── 1.28 ─────────────────────────── 5
#              │ the updates of one batch             │
#              │ S versions of learning since a trajectory was sampled
#
# A bound of 1.28 is meant for the few updates of one batch. The ratio of a trajectory that is S versions old covers S
# versions, so with that bound a token could become at most 1.28 times as likely in all of them, and learning is slow.
# bench/RESULTS.md has the runs that this rests on.

OLD = 4
"""``schedule.staleness`` from which on trajectories are old; ``auto`` may reach it."""
WIDE = 4.0
"""Default of ``algorithm.clip_high`` for them."""


def is_widened(config: Config) -> bool:
    """True if ``clip_high`` is not set, and bounds the ratio to the policy that sampled old trajectories."""
    staleness = config.schedule.staleness
    is_old = staleness == "auto" or staleness >= OLD
    return is_old and config.algorithm.clip_high is None and clips_to_sampler(config.algorithm)


def clips_to_sampler(algorithm: Algorithm) -> bool:
    """True if the loss clips the ratio to the policy that sampled."""
    if is_path(algorithm.loss) or loss_entry(algorithm.loss).function != LOSSES["clipped"].function:
        return False
    return resolved(algorithm.correction).mode == "bypass"


def with_clip_high(config: Config) -> Algorithm:
    """``algorithm`` with the default of ``clip_high`` for old trajectories, where it applies."""
    return replace(config.algorithm, clip_high=WIDE) if is_widened(config) else config.algorithm
