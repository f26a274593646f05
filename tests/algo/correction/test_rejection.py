from math import e, inf, log

import pytest
import torch

from asyncrl.algo.correction.rejection import divergence, kept
from asyncrl.algo.ragged import Ragged
from asyncrl.config.correction import Rejection, thresholds
from asyncrl.config.sections.algorithm import Correction

SEQUENCES = Ragged([2, 0, 1])
LOG_RATIO = torch.tensor([1.0, -1.0, 0.2], dtype=torch.float64)


def rejection(option: str, threshold: str = "1") -> Rejection:
    (found,) = thresholds(Correction(rejection=option, rejection_threshold=threshold)).rejections
    return found


def kept_by(option: str, threshold: str) -> list[bool]:
    return kept(LOG_RATIO, SEQUENCES, rejection(option, threshold)).tolist()


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
    assert divergence(LOG_RATIO, SEQUENCES, rejection(option)).tolist() == pytest.approx(expected)


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
    assert kept(broken, SEQUENCES, rejection("token_k1", "2")).tolist() == [True, False, True]
    assert kept(broken, SEQUENCES, rejection("seq_mean_k3", "0.1")).tolist() == [True, True, True]


def test_one_absurd_token_counts_as_twenty_nats_in_a_mean() -> None:
    far = torch.tensor([-900.0, 0.0, 0.0], dtype=torch.float64)
    assert divergence(far, SEQUENCES, rejection("seq_mean_k1")).tolist() == [10.0, 0.0, 0.0]


def test_small_divergences_do_not_drown_in_rounding() -> None:
    near = torch.full((3,), 1e-4)  # float32: exp(d) - 1 - d would be 0 or 1.2e-7
    assert divergence(near, SEQUENCES, rejection("token_k3")).tolist() == pytest.approx([5e-9] * 3, rel=1e-2)


def test_the_threshold_of_k1_is_in_logs() -> None:
    assert (rejection("token_k1", "0.5_4").low, rejection("token_k1", "0.5_4").high) == (log(0.5), log(4))
