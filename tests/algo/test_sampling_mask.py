import torch

from asyncrl.algo.sampling_mask import REMOVED, SamplingMask

MASK = SamplingMask(torch.tensor([2, 0, 1]), torch.tensor([0, 3, 2]), [0, 2, 2, 3])
"""Of three tokens; the second has none."""


def logits() -> torch.Tensor:
    return torch.arange(12, dtype=torch.float64).view(3, 4)


def test_logits_outside_the_mask_are_removed_and_a_token_without_a_mask_keeps_all() -> None:
    x = REMOVED
    assert MASK.apply(logits(), slice(0, 3)).tolist() == [[0, x, x, 3], [4, 5, 6, 7], [x, x, 10, x]]


def test_some_rows_have_the_masks_of_these_rows() -> None:
    x = REMOVED
    assert MASK.apply(logits()[:2], slice(1, 5)).tolist() == [[0, 1, 2, 3], [x, x, 6, x]], "the last slice may be short"
    assert MASK.apply(logits()[:1], slice(1, 2)).tolist() == [[0, 1, 2, 3]]


def test_a_removed_id_has_no_probability_and_no_part_in_the_entropy() -> None:
    log_p = MASK.apply(logits(), slice(0, 3)).log_softmax(-1)
    p = log_p.exp()
    assert p[0].count_nonzero() == 2
    assert p[2].tolist() == [0, 0, 1, 0]
    assert float((p * log_p)[2].sum()) == 0
