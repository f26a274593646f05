import torch

from asyncrl.algo.ragged import Ragged

SEQUENCES = Ragged([2, 0, 3])
VALUES = torch.tensor([1.0, 3.0, -2.0, 4.0, 4.0])


def test_every_token_knows_its_sequence() -> None:
    assert len(SEQUENCES) == 3
    assert SEQUENCES.index.tolist() == [0, 0, 2, 2, 2]
    assert SEQUENCES.spread(torch.tensor([5.0, 6.0, 7.0])).tolist() == [5.0, 5.0, 7.0, 7.0, 7.0]


def test_sums_means_and_maxima_are_per_sequence_and_defined_for_an_empty_one() -> None:
    assert SEQUENCES.sum(VALUES).tolist() == [4.0, 0.0, 6.0]
    assert SEQUENCES.mean(VALUES).tolist() == [2.0, 0.0, 2.0]
    assert SEQUENCES.max(VALUES).tolist() == [3.0, -torch.inf, 4.0]


def test_a_mean_carries_the_gradient_to_its_tokens() -> None:
    values = VALUES.clone().requires_grad_()
    SEQUENCES.mean(values)[0].backward()
    assert values.grad is not None
    assert values.grad.tolist() == [0.5, 0.5, 0.0, 0.0, 0.0]
