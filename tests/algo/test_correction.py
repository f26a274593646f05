from math import e, exp, inf, log

import pytest
import torch

from asyncrl.algo.aggregate import Ragged
from asyncrl.algo.correction import (
    LIMIT,
    Correct,
    divergence,
    divergent,
    importance_metrics,
    importance_weights,
    kept,
    mismatch_metrics,
    rejection_metrics,
)
from asyncrl.config.correction import Importance, Rejection, thresholds
from asyncrl.config.sections.algorithm import Correction
from asyncrl.errors import ConfigError

SEQUENCES = Ragged([2, 1])
BEHAVIOR = torch.full((3,), -2.0)
LOGPROBS = torch.tensor([-1.0, -3.0, -2.5], requires_grad=True)


@pytest.mark.parametrize("mode", ["bypass", "decoupled"])
def test_a_correction_with_nothing_set_does_nothing(mode: str) -> None:
    assert Correct(Correction(mode=mode))(LOGPROBS, BEHAVIOR, SEQUENCES) == (None, None)  # type: ignore[arg-type]


def test_a_preset_does_what_it_stands_for() -> None:
    weights, keep = Correct(Correction(preset="sequence_tis_geometric_rs"))(LOGPROBS, BEHAVIOR, SEQUENCES)
    assert weights is not None
    assert keep is not None
    assert weights.tolist() == pytest.approx([1.0, 1.0, 0.60653066])
    assert keep.tolist() == [True, True, False]


def test_there_is_no_gradient_in_it() -> None:
    correction = Correction(preset="decoupled_token_is")
    weights, _ = Correct(correction)(LOGPROBS, BEHAVIOR, SEQUENCES)
    assert weights is not None
    assert not weights.requires_grad
    Correct(correction).metrics(LOGPROBS, BEHAVIOR, SEQUENCES)


def test_every_rejection_has_to_be_passed() -> None:
    both = Correction(rejection="token_k1,seq_mean_k1", rejection_threshold="0.5_4,0.9_1.1")
    _, keep = Correct(both)(LOGPROBS, BEHAVIOR, SEQUENCES)
    assert keep is not None
    assert keep.tolist() == [False, True, False]


def test_a_step_and_its_parts_are_corrected_alike() -> None:
    correct = Correct(Correction(preset="decoupled_k3_rs_token_tis"))
    random = torch.Generator().manual_seed(0)
    behavior, logprobs = (-torch.rand(60, generator=random) for _ in range(2))
    lengths = [7, 0, 20, 1, 32]
    weights, keep = correct(logprobs, behavior, Ragged(lengths))
    assert weights is not None
    assert keep is not None
    parts = [
        correct(ours, theirs, Ragged([length]))
        for ours, theirs, length in zip(logprobs.split(lengths), behavior.split(lengths), lengths, strict=True)
    ]
    assert torch.equal(torch.cat([of_part for of_part, _ in parts]), weights)  # type: ignore[misc]
    assert torch.equal(torch.cat([of_part for _, of_part in parts]), keep)  # type: ignore[misc]


def test_float32_is_near_enough_to_float64() -> None:
    correct = Correct(Correction(preset="decoupled_seq_is"))
    random = torch.Generator().manual_seed(0)
    behavior = -torch.rand(8192, generator=random)
    logprobs = behavior + 0.01 * torch.randn(8192, generator=random)
    single, _ = correct(logprobs, behavior, Ragged([8192]))
    double, _ = correct(logprobs.double(), behavior.double(), Ragged([8192]))
    assert single is not None
    assert double is not None
    assert float((single / double - 1).abs().max()) < 1e-5


def test_metrics_are_those_of_what_is_set() -> None:
    prefixes = ("rollout_is_", "rollout_rs_")
    for correction, expected in (
        (Correction(), {False}),
        (Correction(preset="decoupled_token_is"), {"rollout_is_"}),
        (Correction(preset="decoupled_geo_rs"), {"rollout_rs_"}),
        (Correction(preset="decoupled_geo_rs_seq_tis"), set(prefixes)),
    ):
        found = Correct(correction).metrics(LOGPROBS.detach(), BEHAVIOR, SEQUENCES)
        assert {"kl", "k3_kl", "training_ppl", "rollout_ppl", "chi2_token", "chi2_seq"} < found.keys()
        assert {prefix for name in found for prefix in prefixes if name.startswith(prefix)} == expected - {False}


def test_a_step_without_tokens_has_no_metrics() -> None:
    correct = Correct(Correction(preset="decoupled_geo_rs_seq_tis"))
    assert correct.metrics(torch.empty(0), torch.empty(0), Ragged([0, 0])) == {}
    weights, keep = correct(torch.empty(0), torch.empty(0), Ragged([0, 0]))
    assert weights is not None
    assert keep is not None
    assert (len(weights), len(keep)) == (0, 0)


def test_what_cannot_be_understood_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no preset 'geo_rs'"):
        Correct(Correction(preset="geo_rs"))


# ── test divergent ────────────────────────────────────────────────────────────────────────────
# Mask of divergent sequences of negative advantage, worked by hand.

SEQUENCES_DIVERGENT = Ragged([2, 2, 0, 1])
LOG_RATIO = torch.tensor([-0.5, -0.1, -0.5, -0.1, 0.9])
"""Mean of the sampler's log-probs minus the trainer's: .3, .3 and -.9."""


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [(0.29, [False, False, True, True, False]), (0.31, [False] * 5)],
)
def test_only_bad_sequences_that_have_become_unlikely_are_marked(threshold: float, expected: list[bool]) -> None:
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0])
    assert divergent(LOG_RATIO, advantages, SEQUENCES_DIVERGENT, threshold).tolist() == expected


def test_with_advantages_of_tokens_only_negative_ones_are_marked() -> None:
    advantages = torch.tensor([1.0, -1.0, 0.0, -1.0, -1.0])
    assert divergent(LOG_RATIO, advantages, SEQUENCES_DIVERGENT, 0.1).tolist() == [False, True, False, True, False]


def test_a_sequence_that_has_become_likelier_stays() -> None:
    assert not divergent(torch.tensor([5.0]), torch.tensor([-1.0]), Ragged([1]), 0.1).any()


def test_a_divergence_that_is_no_number_stays_so_that_the_loss_shows_it() -> None:
    assert not divergent(torch.tensor([torch.nan]), torch.tensor([-1.0]), Ragged([1]), 0.1).any()


# ── test metrics ──────────────────────────────────────────────────────────────────────────────

SEQUENCES_METRICS = Ragged([3, 0, 1])


def logs(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64).log()


def test_two_equal_policies_are_not_apart() -> None:
    found = mismatch_metrics(logs(0.5, 0.5, 0.5, 0.1), logs(0.5, 0.5, 0.5, 0.1), SEQUENCES_METRICS)
    assert (found["training_ppl"], found["rollout_ppl"], found["ppl_ratio"]) == pytest.approx((6.0, 6.0, 1.0))
    apart = ("kl", "k3_kl", "chi2_token", "chi2_seq", "log_ppl_diff", "log_ppl_abs_diff", "log_ppl_diff_max")
    assert {found[name] for name in apart} == {0.0}


def test_a_trainer_half_as_sure_of_one_sequence() -> None:
    found = mismatch_metrics(logs(0.5, 0.5, 0.5, 0.5), logs(0.5, 0.5, 0.5, 1.0), SEQUENCES_METRICS)
    assert found["kl"] == pytest.approx(log(2) / 4)
    assert found["k3_kl"] == pytest.approx((log(2) - 0.5) / 4)
    assert found["training_ppl"] == pytest.approx(2.0)
    assert found["rollout_ppl"] == pytest.approx((2.0 + 1.0) / 2)
    assert found["training_log_ppl"] - found["rollout_log_ppl"] == pytest.approx(found["log_ppl_diff"])
    assert (found["log_ppl_diff_min"], found["log_ppl_diff_max"]) == pytest.approx((0.0, log(2)))
    assert found["ppl_ratio"] == pytest.approx((1.0 + 2.0) / 2)
    assert found["chi2_token"] == pytest.approx((1 + 1 + 1 + 0.25) / 4 - 1)
    assert found["chi2_seq"] == pytest.approx((1 + 0.25) / 2 - 1)


def test_token_weights() -> None:
    importance = Importance(level="token", high=2.0)
    found = importance_metrics(logs(4.0, 0.25, 0.75, 1.0), SEQUENCES_METRICS, importance)  # used: 2, 1/4, 3/4, 1
    assert found["rollout_is_mean"] == 1.0
    assert found["rollout_is_std"] == pytest.approx((5.625 / 4 - 1) ** 0.5)
    assert (found["rollout_is_max"], found["rollout_is_min"]) == pytest.approx((2.0, 0.25))
    assert found["rollout_is_eff_sample_size"] == pytest.approx(4 / 5.625)
    assert (found["rollout_is_ratio_fraction_high"], found["rollout_is_ratio_fraction_low"]) == (0.25, 0.25)
    assert (found["rollout_is_seq_mean"], found["rollout_is_seq_max_deviation"]) == pytest.approx((1.0, 0.0))
    assert "rollout_is_oob_ratio" not in found
    assert "rollout_is_batch_norm_factor" not in found


def test_sequence_weights_are_counted_by_sequence() -> None:
    importance = Importance(level="sequence", low=0.5, high=2.0, normalize=True)
    found = importance_metrics(logs(2.0, 2.0, 1.0, 1.0), SEQUENCES_METRICS, importance)  # 4 and 1; used: 0 and 1
    assert found["rollout_is_mean"] == 0.25
    assert (found["rollout_is_max"], found["rollout_is_min"]) == pytest.approx((4.0, 1.0))
    assert found["rollout_is_ratio_fraction_high"] == 0.5
    assert found["rollout_is_oob_ratio"] == 0.75
    assert found["rollout_is_batch_norm_factor"] == 0.5


def test_weights_that_are_all_dropped_say_nothing() -> None:
    importance = Importance(level="token", low=0.5, high=2.0, normalize=True)
    found = importance_metrics(logs(9.0, 9.0, 9.0, 9.0), SEQUENCES_METRICS, importance)
    assert (found["rollout_is_eff_sample_size"], found["rollout_is_batch_norm_factor"]) == (0.0, 1.0)


def test_rejections_are_told_apart_and_together() -> None:
    chosen = Correction(rejection="token_k1,seq_max_k2", rejection_threshold="0.5_2.0,2.0")
    far = exp(2.5)  # k2 of it is 3.125
    found = rejection_metrics(logs(3.0, 1.0, 1.0, far), SEQUENCES_METRICS, thresholds(chosen).rejections)
    assert (found["rollout_rs_token_k1_masked_fraction"], found["rollout_rs_token_k1_seq_masked_fraction"]) == (0.5, 1)
    assert found["rollout_rs_token_k1_fraction_low"] == 0.5  # sampler to trainer: a third
    assert found["rollout_rs_seq_max_k2_masked_fraction"] == 0.25
    assert found["rollout_rs_seq_max_k2_seq_masked_fraction"] == 0.5
    assert found["rollout_rs_seq_max_k2_max"] == pytest.approx(3.125)
    assert (found["rollout_rs_masked_fraction"], found["rollout_rs_seq_masked_fraction"]) == (0.5, 1.0)


def test_one_sequence_has_no_deviation() -> None:
    rejections = thresholds(Correction(rejection="seq_mean_k1", rejection_threshold="1.1")).rejections
    assert rejection_metrics(logs(2.0), Ragged([1]), rejections)["rollout_rs_seq_mean_k1_seq_std"] == 0.0


# ── test rejection ────────────────────────────────────────────────────────────────────────────

SEQUENCES_REJECTION = Ragged([2, 0, 1])
LOG_RATIO_REJECTION = torch.tensor([1.0, -1.0, 0.2], dtype=torch.float64)


def rejection(option: str, threshold: str = "1") -> Rejection:
    (found,) = thresholds(Correction(rejection=option, rejection_threshold=threshold)).rejections
    return found


def kept_by(option: str, threshold: str) -> list[bool]:
    return kept(LOG_RATIO_REJECTION, SEQUENCES_REJECTION, rejection(option, threshold)).tolist()


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("token_k1", [-1.0, 1.0, -0.2]),
        ("token_k2", [0.5, 0.5, 0.02]),
        ("token_k3", [e - 2, 1 / e, 0.0214027581]),
        ("seq_sum_k1", [0.0, 0.0, -0.2]),
        ("seq_sum_k2", [1.0, 0.0, 0.02]),
        ("seq_mean_k1", [0.0, 0.0, -0.2]),
        ("seq_mean_k3", [(e - 2 + 1 / e) / 2, 0.0, 0.0214027581]),
        ("seq_max_k2", [0.5, -inf, 0.02]),
        ("seq_max_k3", [e - 2, -inf, 0.0214027581]),
    ],
)
def test_what_is_measured(option: str, expected: list[float]) -> None:
    assert divergence(LOG_RATIO_REJECTION, SEQUENCES_REJECTION, rejection(option)).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("option", "threshold", "expected"),
    [
        pytest.param("token_k1", "0.5_3", [False, True, True], id="the sampler's ratio 1/e is below, e is within"),
        pytest.param("token_k1", "3", [True, True, True], id="one number is the band from a third to three"),
        pytest.param("token_k1", "2", [False, False, True], id="... or from a half to two"),
        pytest.param("seq_mean_k1", "0.999_1.001", [True, True, False], id="geometric means 1 and e^-0.2"),
        pytest.param("seq_sum_k1", "0.9_1.1", [True, True, False], id="products 1 and e^-0.2"),
        pytest.param("token_k2", "0.4", [False, False, True], id="k2 tells no direction"),
        pytest.param("token_k3", "0.5", [False, True, True], id="k3 is steeper where the trainer is surer"),
        pytest.param("seq_max_k3", "0.5", [False, False, True], id="one token takes its sequence with it"),
        pytest.param("seq_mean_k3", "0.6", [True, True, True], id="... unless their mean is asked"),
    ],
)
def test_what_is_kept(option: str, threshold: str, expected: list[bool]) -> None:
    assert kept_by(option, threshold) == expected


def test_what_is_not_a_number_is_kept_for_the_loss_to_show() -> None:
    broken = torch.tensor([float("nan"), -9.0, 0.0])
    assert kept(broken, SEQUENCES_REJECTION, rejection("token_k1", "2")).tolist() == [True, False, True]
    assert kept(broken, SEQUENCES_REJECTION, rejection("seq_mean_k3", "0.1")).tolist() == [True, True, True]


def test_one_absurd_token_counts_as_twenty_nats_in_a_mean() -> None:
    far = torch.tensor([-900.0, 0.0, 0.0], dtype=torch.float64)
    assert divergence(far, SEQUENCES_REJECTION, rejection("seq_mean_k1")).tolist() == [10.0, 0.0, 0.0]


def test_small_divergences_do_not_drown_in_rounding() -> None:
    near = torch.full((3,), 1e-4)  # float32: exp(d) - 1 - d would be 0 or 1.2e-7
    assert divergence(near, SEQUENCES_REJECTION, rejection("token_k3")).tolist() == pytest.approx([5e-9] * 3, rel=1e-2)


def test_the_threshold_of_k1_is_in_logs() -> None:
    assert (rejection("token_k1", "0.5_4").low, rejection("token_k1", "0.5_4").high) == (log(0.5), log(4))


# ── test weights ──────────────────────────────────────────────────────────────────────────────

TWO = Ragged([2, 0, 1])
"""Tokens a, b of the first; none of the second; c of the third."""


def weights(ratios: list[float], *, sequences: Ragged = TWO, **settings: object) -> list[float]:
    importance = Importance(**({"level": "token", "high": 2.0} | settings))  # type: ignore[arg-type]
    return importance_weights(torch.tensor(ratios).log(), sequences, importance).tolist()


def test_a_token_weighs_what_its_ratio_is_up_to_the_bound() -> None:
    assert weights([0.5, 3.0, 1.0]) == pytest.approx([0.5, 2.0, 1.0])


def test_a_sequence_weighs_the_product_of_its_ratios() -> None:
    assert weights([0.5, 3.0, 4.0], level="sequence") == pytest.approx([1.5, 1.5, 2.0])


def test_a_band_drops_what_is_outside_either_way_and_cuts_nothing() -> None:
    assert weights([0.5, 3.0, 4.9], low=0.6, high=4.0) == pytest.approx([0.0, 3.0, 0.0])
    assert weights([0.5, 3.0, 4.9], low=0.6, high=4.0, level="sequence") == pytest.approx([1.5, 1.5, 0.0])


def test_bounds_themselves_are_inside() -> None:
    importance = Importance(level="token", low=1.0, high=1.0)
    assert importance_weights(torch.zeros(3), TWO, importance).tolist() == [1.0, 1.0, 1.0]


def test_normalised_token_weights_have_mean_one_over_tokens() -> None:
    assert weights([0.5, 3.0, 0.5], normalize=True) == pytest.approx([0.5, 2.0, 0.5])  # mean 1
    assert weights([1.0, 3.0, 3.0], normalize=True) == pytest.approx([0.6, 1.2, 1.2])  # mean 5/3


def test_normalised_sequence_weights_have_mean_one_over_sequences_with_tokens() -> None:
    # 1.5 and 0.5, once each although one has two tokens; the empty sequence is none
    assert weights([0.5, 3.0, 0.5], level="sequence", normalize=True) == pytest.approx([1.5, 1.5, 0.5])


def test_where_the_band_drops_everything_nothing_is_divided_by_zero() -> None:
    assert weights([5.0, 5.0, 5.0], low=0.5, normalize=True) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_absurd_ratios_stay_finite(level: str) -> None:
    importance = Importance(level=level, high=1e30)  # type: ignore[arg-type]
    found = importance_weights(torch.tensor([700.0, 100.0, -900.0]), TWO, importance)
    assert found.tolist() == pytest.approx([exp(LIMIT), exp(LIMIT), exp(-LIMIT)])


def test_a_long_sequence_is_cut_only_after_its_logs_are_added() -> None:
    importance = Importance(level="sequence", high=10.0)
    found = importance_weights(torch.tensor([30.0, -29.0, log(2.0)]), TWO, importance)
    assert found.tolist() == pytest.approx([e, e, 2.0])


@pytest.mark.parametrize("low", [None, 0.5])
def test_what_is_not_a_number_stays_so(low: float | None) -> None:
    importance = Importance(level="token", low=low, high=2.0)
    assert importance_weights(torch.tensor([float("nan"), 0.0, 0.0]), TWO, importance).isnan().tolist() == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_there_may_be_no_tokens_at_all(level: str) -> None:
    assert weights([], sequences=Ragged([0, 0]), level=level, normalize=True) == []
