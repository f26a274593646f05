"""
Each preset is what verl's factory of that name makes but for one of our own; thresholds are parsed strictly; the
default of clip_high is wide for old trajectories alone.
"""

from math import inf, log
from typing import Any

import pytest

from asyncrl.config.correction import (
    PRESETS,
    REJECTIONS,
    WIDE,
    Importance,
    Rejection,
    preset,
    resolved,
    thresholds,
    with_clip_high,
)
from asyncrl.config.run_file import decode
from asyncrl.config.sections.algorithm import Correction
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


OWN = {"bypass_ppo_clip_mask": "clipped", "bypass_cispo_mask": "cispo"}


def test_there_is_every_one_of_them_and_two_more() -> None:
    assert PRESETS.keys() == {*VERL, *OWN}


def test_the_default_is_bypass_ppo_clip() -> None:
    assert resolved(Correction(preset="bypass_ppo_clip")) == Correction()


@pytest.mark.parametrize("name", OWN)
def test_a_preset_masks_divergent_sequences_and_its_bound_can_be_changed(name: str) -> None:
    assert resolved(Correction(preset=name)) == Correction(mask_divergent=0.1)
    assert resolved(Correction(preset=name, mask_divergent=0.2)) == Correction(mask_divergent=0.2)
    assert preset(name).loss == OWN[name]


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


def test_a_mask_of_divergent_sequences_may_be_set_beside_a_preset() -> None:
    assert resolved(Correction(preset="bypass_ppo_clip", mask_divergent=0.1)) == Correction(mask_divergent=0.1)


def test_an_anchor_may_be_set_beside_a_preset() -> None:
    chosen = resolved(Correction(preset="decoupled_seq_is", anchor="publish"))
    assert chosen == Correction(mode="decoupled", importance="sequence", importance_threshold="2.0", anchor="publish")


def test_nothing_is_set_beside_a_preset() -> None:
    beside = Correction(preset="decoupled_geo_rs", mode="decoupled", importance="token")
    with pytest.raises(ConfigError) as raised:
        resolved(beside)
    assert str(raised.value) == (
        "algorithm.correction.preset='decoupled_geo_rs' sets the whole section, but mode, importance are set "
        "beside it; remove one or the other"
    )


# ── thresholds ────────────────────────────────────────────────────────────────────────────────


def importance(text: str | float) -> Importance | None:
    return thresholds(Correction(importance="token", importance_threshold=text)).importance


def rejections(options: str, text: str | float) -> tuple[Rejection, ...]:
    return thresholds(Correction(rejection=options, rejection_threshold=text)).rejections


def test_every_rejection_has_a_name() -> None:
    assert set(REJECTIONS) == {
        *("token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3"),
        *("seq_mean_k1", "seq_mean_k2", "seq_mean_k3", "seq_max_k2", "seq_max_k3"),
    }


def test_nothing_set_is_nothing_done() -> None:
    assert thresholds(Correction()) == (None, ())


@pytest.mark.parametrize("text", ["2.0", " 2 ", 2.0, "2e0"])
def test_one_number_bounds_weights_above(text: str | float) -> None:
    assert importance(text) == Importance(level="token", high=2.0)


def test_two_numbers_are_a_band_of_weights() -> None:
    assert importance("0.5_5.0") == Importance(level="token", low=0.5, high=5.0)


def test_without_a_number_weights_are_cut_at_two() -> None:
    assert importance("") == Importance(level="token", high=2.0)


def test_k1_has_a_band_of_ratios_and_one_number_is_as_far_either_way() -> None:
    assert rejections("token_k1", "0.6_1.6") == (Rejection(option="token_k1", low=log(0.6), high=log(1.6)),)
    assert rejections("token_k1", 2.0) == (Rejection(option="token_k1", low=log(0.5), high=log(2.0)),)


@pytest.mark.parametrize("option", ["token_k2", "seq_max_k3"])
def test_k2_and_k3_have_an_upper_bound(option: str) -> None:
    assert rejections(option, 0.01) == (Rejection(option=option, low=-inf, high=0.01),)


def test_each_rejection_has_its_threshold_or_all_have_the_same() -> None:
    first, second = rejections("token_k1, seq_mean_k3", "0.5_2.0, 0.1")
    assert (first.scope, first.divergence, first.high) == ("token", "k1", log(2.0))
    assert (second.scope, second.divergence, second.high) == ("seq_mean", "k3", 0.1)
    assert [found.high for found in rejections("token_k2,seq_max_k2,token_k1", "3")] == [3.0, 3.0, log(3)]


NUMBER = "expected a positive number or a band such as 0.5_5.0, got"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("much", f"{NUMBER} 'much'"),
        ("-1", f"{NUMBER} '-1'"),
        ("0", f"{NUMBER} '0'"),
        ("inf", f"{NUMBER} 'inf'"),
        ("nan", f"{NUMBER} 'nan'"),
        ("0.5_", f"{NUMBER} ''"),
        ("1_2_3", f"{NUMBER} '2_3'"),
        ("2_1", "'2_1': the lower bound is above the upper one"),
    ],
)
def test_what_is_no_threshold_is_refused(text: str, sentence: str) -> None:
    for key, refused in (
        ("importance_threshold", Correction(importance="sequence", importance_threshold=text)),
        ("rejection_threshold", Correction(rejection="seq_mean_k1", rejection_threshold=text)),
    ):
        with pytest.raises(ConfigError) as raised:
            thresholds(refused)
        assert str(raised.value).startswith(f"algorithm.correction.{key}")
        assert str(raised.value).endswith(sentence)


@pytest.mark.parametrize(
    ("options", "text", "sentence"),
    [
        ("token_k4", "1", "rejection: 'token_k4' is none of token_k1, token_k2, "),
        ("seq_max_k1", "1", "rejection: 'seq_max_k1' is none of "),
        ("token_k1,,token_k2", "1", "rejection: '' is none of "),
        ("token_k1,token_k1", "1", "rejection is 'token_k1,token_k1': name each rejection once"),
        (
            "token_k1,token_k2,token_k3",
            "1,2",
            "rejection_threshold: expected one for each of token_k1, token_k2, token_k3, or one for all, got 2",
        ),
        ("token_k1", "1,2", "rejection_threshold: expected one for each of token_k1, or one for all, got 2"),
        ("token_k1", "", "rejection_threshold: expected one for each of token_k1, or one for all, got 0"),
        ("seq_mean_k3", "0.1_0.2", "rejection_threshold is '0.1_0.2': seq_mean_k3 has an upper bound and no lower one"),
        ("token_k1", "0.5", "rejection_threshold is '0.5', which stands for 1/x to x: use at least 1, or a band"),
    ],
)
def test_a_rejection_that_cannot_be_is_refused(options: str, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        rejections(options, text)
    assert str(raised.value).startswith(f"algorithm.correction.{sentence}")


def clip_high(staleness: float | str, **algorithm: Any) -> float | None:
    plain = {"model": {"path": "m"}, "data": {"train": "t"}, "schedule": {"staleness": staleness}}
    return with_clip_high(decode(plain | {"algorithm": algorithm})).clip_high


@pytest.mark.parametrize(
    ("staleness", "expected"), [(0, None), (1, None), (3.5, None), (4, WIDE), (16, WIDE), ("auto", WIDE)]
)
def test_it_is_wide_from_a_staleness_on(staleness: float | str, expected: float | None) -> None:
    assert clip_high(staleness) == clip_high(staleness, loss="vanilla") == expected


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ({"clip_high": 0.28}, 0.28),
        ({"correction": {"mode": "decoupled"}}, None),
        ({"loss": "gspo"}, None),
        ({"loss": "mine.py:loss"}, None),
        ({"correction": {"preset": "bypass_ppo_clip_mask"}}, WIDE),
    ],
    ids=["set", "ratio to the policy before the step", "another loss", "a custom loss", "preset"],
)
def test_it_is_left_alone_where_it_is_set_or_bounds_something_else(
    algorithm: dict[str, Any], expected: float | None
) -> None:
    assert clip_high(16, **algorithm) == expected
