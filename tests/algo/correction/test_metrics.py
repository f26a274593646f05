from math import exp, log

import pytest
import torch

from asyncrl.algo.correction.metrics import importance_metrics, mismatch_metrics, rejection_metrics
from asyncrl.algo.ragged import Ragged
from asyncrl.config.correction import Importance, thresholds
from asyncrl.config.sections.algorithm import Correction

SEQUENCES = Ragged([3, 0, 1])


def logs(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64).log()


def test_two_equal_policies_are_not_apart() -> None:
    found = mismatch_metrics(logs(0.5, 0.5, 0.5, 0.1), logs(0.5, 0.5, 0.5, 0.1), SEQUENCES)
    assert (found["training_ppl"], found["rollout_ppl"], found["ppl_ratio"]) == pytest.approx((6.0, 6.0, 1.0))
    apart = ("kl", "k3_kl", "chi2_token", "chi2_seq", "log_ppl_diff", "log_ppl_abs_diff", "log_ppl_diff_max")
    assert {found[name] for name in apart} == {0.0}


def test_a_trainer_half_as_sure_of_one_sequence() -> None:
    found = mismatch_metrics(logs(0.5, 0.5, 0.5, 0.5), logs(0.5, 0.5, 0.5, 1.0), SEQUENCES)
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
    found = importance_metrics(logs(4.0, 0.25, 0.75, 1.0), SEQUENCES, importance)  # used: 2, 1/4, 3/4, 1
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
    found = importance_metrics(logs(2.0, 2.0, 1.0, 1.0), SEQUENCES, importance)  # 4 and 1; used: 0 and 1
    assert found["rollout_is_mean"] == 0.25
    assert (found["rollout_is_max"], found["rollout_is_min"]) == pytest.approx((4.0, 1.0))
    assert found["rollout_is_ratio_fraction_high"] == 0.5
    assert found["rollout_is_oob_ratio"] == 0.75
    assert found["rollout_is_batch_norm_factor"] == 0.5


def test_weights_that_are_all_dropped_say_nothing() -> None:
    importance = Importance(level="token", low=0.5, high=2.0, normalize=True)
    found = importance_metrics(logs(9.0, 9.0, 9.0, 9.0), SEQUENCES, importance)
    assert (found["rollout_is_eff_sample_size"], found["rollout_is_batch_norm_factor"]) == (0.0, 1.0)


def test_rejections_are_told_apart_and_together() -> None:
    chosen = Correction(rejection="token_k1,seq_max_k2", rejection_threshold="0.5_2.0,2.0")
    far = exp(2.5)  # k2 of it is 3.125
    found = rejection_metrics(logs(3.0, 1.0, 1.0, far), SEQUENCES, thresholds(chosen).rejections)
    assert (found["rollout_rs_token_k1_masked_fraction"], found["rollout_rs_token_k1_seq_masked_fraction"]) == (0.5, 1)
    assert found["rollout_rs_token_k1_fraction_low"] == 0.5  # sampler to trainer: a third
    assert found["rollout_rs_seq_max_k2_masked_fraction"] == 0.25
    assert found["rollout_rs_seq_max_k2_seq_masked_fraction"] == 0.5
    assert found["rollout_rs_seq_max_k2_max"] == pytest.approx(3.125)
    assert (found["rollout_rs_masked_fraction"], found["rollout_rs_seq_masked_fraction"]) == (0.5, 1.0)


def test_one_sequence_has_no_deviation() -> None:
    rejections = thresholds(Correction(rejection="seq_mean_k1", rejection_threshold="1.1")).rejections
    assert rejection_metrics(logs(2.0), Ragged([1]), rejections)["rollout_rs_seq_mean_k1_seq_std"] == 0.0
