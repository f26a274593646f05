"""Each name stands for what verl's factory of that name makes."""

import pytest

from asyncrl.config.presets import PRESETS, preset, resolved
from asyncrl.config.sections import Correction
from asyncrl.config.thresholds import thresholds
from asyncrl.errors import ConfigError

GEO, K3 = ("seq_mean_k1", "0.999_1.001"), ("seq_mean_k3", "0.01")
VERL = {  # mode, importance and its threshold, rejection and its threshold
    "decoupled_token_is": ("decoupled", "token", "2.0", "", ""),
    "decoupled_seq_is": ("decoupled", "sequence", "2.0", "", ""),
    "decoupled_token_icepop": ("decoupled", "token", "0.5_5.0", "", ""),
    "decoupled_seq_is_rs": ("decoupled", "sequence", "2.0", "seq_sum_k1", "0.5_2.0"),
    "decoupled_geo_rs": ("decoupled", "none", "", *GEO),
    "decoupled_geo_rs_seq_tis": ("decoupled", "sequence", "2.0", *GEO),
    "decoupled_geo_rs_token_tis": ("decoupled", "token", "2.0", *GEO),
    "decoupled_k3_rs": ("decoupled", "none", "", *K3),
    "decoupled_k3_rs_seq_tis": ("decoupled", "sequence", "2.0", *K3),
    "decoupled_k3_rs_token_tis": ("decoupled", "token", "2.0", *K3),
    "bypass_ppo_clip": ("bypass", "none", "", "", ""),
    "bypass_ppo_clip_geo_rs": ("bypass", "none", "", *GEO),
    "bypass_ppo_clip_k3_rs": ("bypass", "none", "", *K3),
    "bypass_pg_is": ("bypass", "sequence", "2.0", "", ""),
    "bypass_pg_token_icepop": ("bypass", "token", "0.5_5.0", "", ""),
    "bypass_pg_geo_rs": ("bypass", "none", "", *GEO),
    "bypass_pg_geo_rs_seq_tis": ("bypass", "sequence", "2.0", *GEO),
    "bypass_pg_geo_rs_token_tis": ("bypass", "token", "2.0", *GEO),
    "sequence_tis_geometric_rs": ("decoupled", "sequence", "2.0", *GEO),
}


def test_there_is_every_one_of_them_and_no_other() -> None:
    assert PRESETS.keys() == VERL.keys()


@pytest.mark.parametrize("name", VERL)
def test_a_preset_is_what_verl_means_by_it(name: str) -> None:
    found = resolved(Correction(preset=name))
    assert VERL[name] == (
        found.mode,
        found.importance,
        found.importance_threshold,
        found.rejection,
        found.rejection_threshold,
    )
    assert not found.preset
    assert not found.importance_normalize
    importance, rejections = thresholds(found)
    assert (importance is not None, bool(rejections)) == (found.importance != "none", bool(found.rejection))


@pytest.mark.parametrize("name", VERL)
def test_a_preset_says_which_loss_it_is_for(name: str) -> None:
    loss = "reinforce" if name.startswith("bypass_pg") else "clipped" if name.startswith("bypass") else ""
    assert preset(name).loss == loss


def test_without_a_preset_nothing_is_changed() -> None:
    correction = Correction(mode="decoupled", rejection="token_k2", rejection_threshold="3")
    assert resolved(correction) is correction


def test_a_misspelt_preset_is_one_sentence() -> None:
    with pytest.raises(ConfigError) as raised:
        resolved(Correction(preset="decoupled_geo_rs_seq_is"))
    assert str(raised.value) == (
        "algorithm.correction.preset: there is no preset 'decoupled_geo_rs_seq_is'; did you mean "
        "'decoupled_geo_rs_seq_tis'?"
    )
    with pytest.raises(ConfigError, match="expected one of: decoupled_token_is, "):
        resolved(Correction(preset="x"))


def test_nothing_is_set_beside_a_preset() -> None:
    beside = Correction(preset="decoupled_geo_rs", mode="decoupled", importance="token")
    with pytest.raises(ConfigError) as raised:
        resolved(beside)
    assert str(raised.value) == (
        "algorithm.correction.preset='decoupled_geo_rs' settles all of the section, but mode, importance are set "
        "beside it; remove one or the other"
    )
