"""Mask of divergent sequences of negative advantage, worked by hand."""

import pytest
import torch

from asyncrl.algo.correction.divergent import divergent
from asyncrl.algo.ragged import Ragged

SEQUENCES = Ragged([2, 2, 0, 1])
LOG_RATIO = torch.tensor([-0.5, -0.1, -0.5, -0.1, 0.9])
"""Mean of the sampler's log-probs minus the trainer's: .3, .3 and -.9."""


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [(0.29, [False, False, True, True, False]), (0.31, [False] * 5)],
)
def test_only_bad_sequences_that_have_become_unlikely_are_marked(threshold: float, expected: list[bool]) -> None:
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0])
    assert divergent(LOG_RATIO, advantages, SEQUENCES, threshold).tolist() == expected


def test_with_advantages_of_tokens_only_negative_ones_are_marked() -> None:
    advantages = torch.tensor([1.0, -1.0, 0.0, -1.0, -1.0])
    assert divergent(LOG_RATIO, advantages, SEQUENCES, 0.1).tolist() == [False, True, False, True, False]


def test_a_sequence_that_has_become_likelier_stays() -> None:
    assert not divergent(torch.tensor([5.0]), torch.tensor([-1.0]), Ragged([1]), 0.1).any()


def test_a_divergence_that_is_no_number_stays_so_that_the_loss_shows_it() -> None:
    assert not divergent(torch.tensor([torch.nan]), torch.tensor([-1.0]), Ragged([1]), 0.1).any()
