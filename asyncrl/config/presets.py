"""
Corrections that go by a name, verl's.

    decoupled_...   against the policy the step began with; any loss
    bypass_...      against the policy that sampled: ppo_clip with the clipped loss, pg with reinforce
    ..._is, ..._tis truncated importance weights, of tokens or sequences; icepop: a band of them
    ..._geo_rs      sequences are left out by their geometric mean ratio; k3_rs: by their mean k3
"""

from typing import Any

from msgspec import Struct, structs

from asyncrl.config.sections import Correction
from asyncrl.errors import ConfigError
from asyncrl.plug_in import hint

TOKEN_TIS = {"importance": "token", "importance_threshold": "2.0"}
SEQ_TIS = {"importance": "sequence", "importance_threshold": "2.0"}
TOKEN_ICEPOP = {"importance": "token", "importance_threshold": "0.5_5.0"}
SUM_RS = {"rejection": "seq_sum_k1", "rejection_threshold": "0.5_2.0"}
GEO_RS = {"rejection": "seq_mean_k1", "rejection_threshold": "0.999_1.001"}
K3_RS = {"rejection": "seq_mean_k3", "rejection_threshold": "0.01"}


class Preset(Struct, frozen=True):
    """A correction, and what it is meant for."""

    correction: Correction
    loss: str = ""
    """The only ``algorithm.loss`` it goes with; empty if any will do."""


def _decoupled(**settings: Any) -> Preset:
    return Preset(Correction(mode="decoupled", **settings))


def _ppo_clip(**settings: Any) -> Preset:
    return Preset(Correction(mode="bypass", **settings), "clipped")


def _pg(**settings: Any) -> Preset:
    return Preset(Correction(mode="bypass", **settings), "reinforce")


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
    "bypass_ppo_clip": _ppo_clip(),
    "bypass_ppo_clip_geo_rs": _ppo_clip(**GEO_RS),
    "bypass_ppo_clip_k3_rs": _ppo_clip(**K3_RS),
    "bypass_pg_is": _pg(**SEQ_TIS),
    "bypass_pg_token_icepop": _pg(**TOKEN_ICEPOP),
    "bypass_pg_geo_rs": _pg(**GEO_RS),
    "bypass_pg_geo_rs_seq_tis": _pg(**SEQ_TIS, **GEO_RS),
    "bypass_pg_geo_rs_token_tis": _pg(**TOKEN_TIS, **GEO_RS),
}
PRESETS["sequence_tis_geometric_rs"] = PRESETS["decoupled_geo_rs_seq_tis"]


def preset(name: str) -> Preset:
    """
    The preset of that name.

    Raises:
        ConfigError: There is none.
    """
    if name not in PRESETS:
        raise ConfigError(f"algorithm.correction.preset: there is no preset {name!r}; {hint(name, PRESETS)}")
    return PRESETS[name]


def resolved(correction: Correction) -> Correction:
    """
    The same without a preset: what it stands for is in its place. One that has none is given back.

    Raises:
        ConfigError: There is no such preset, or something else is set beside it.
    """
    if not correction.preset:
        return correction
    chosen = preset(correction.preset)
    if correction != Correction(preset=correction.preset):
        plain, given = Correction(), structs.asdict(correction)
        others = [key for key, value in given.items() if key != "preset" and value != getattr(plain, key)]
        raise ConfigError(
            f"algorithm.correction.preset={correction.preset!r} settles all of the section, but {', '.join(others)} "
            f"{'is' if len(others) == 1 else 'are'} set beside it; remove one or the other"
        )
    return chosen.correction
