from math import e, exp, log

import pytest
import torch

from asyncrl.algo.correction.weights import LIMIT, importance_weights
from asyncrl.algo.ragged import Ragged
from asyncrl.config.correction import Importance

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
