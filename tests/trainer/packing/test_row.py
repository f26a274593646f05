import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.trainer.packing.row import Gather, Row

#   tokens    p p p a a b b b q q c
#   places    0 1 2 3 4 5 6 7 8 9 10
LONG, SHORT, OTHER = [0, 1, 2, 5, 6, 7], [0, 1, 2, 3, 4], [8, 9, 10]
ROW = Row([np.array(places) for places in (LONG, SHORT, OTHER)], torch.device("cpu"))


def test_sequences_are_whole_and_shorter_ones_come_first() -> None:
    assert ROW.sequences.indices.tolist() == OTHER + SHORT + LONG
    assert ROW.lengths == [3, 5, 6]


def test_kernels_are_told_where_sequences_begin_and_end() -> None:
    assert ROW.ends.tolist() == [0, 3, 8, 14]
    assert ROW.ends.dtype == torch.int32


def test_each_token_of_the_row_is_taken_from_its_first_occurrence() -> None:
    assert ROW.sequences.indices[ROW.tokens.indices].tolist() == list(range(11))
    assert ROW.tokens.indices.tolist() == [3, 4, 5, 6, 7, 11, 12, 13, 0, 1, 2]


@pytest.mark.parametrize("gather", [ROW.sequences, ROW.tokens], ids=["sequences", "tokens"])
def test_gradients_of_taken_tokens_are_those_of_an_index(gather) -> None:
    num_tokens = 11 if gather is ROW.sequences else 14
    part = torch.randn(num_tokens, 2, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(len(gather.indices), 2, 3, dtype=torch.float64)
    expected = torch.autograd.grad((part[gather.indices] * weights).sum(), part)[0]
    assert torch.equal(gather(part), part[gather.indices])
    torch.testing.assert_close(torch.autograd.grad((gather(part) * weights).sum(), part)[0], expected)
    torch.testing.assert_close(gather.summed(weights.flatten(1)), expected.flatten(1), rtol=1e-6, atol=1e-6)


def test_gradients_of_a_shared_prompt_are_summed_in_float32() -> None:
    copies = 1000
    row = Row([np.array([0, 1 + number]) for number in range(copies)], torch.device("cpu"))
    ones = torch.ones(2 * copies, 1, dtype=torch.bfloat16)
    sums = row.sequences.summed(ones)[:, 0].tolist()
    assert sums == [float(torch.tensor(copies).bfloat16()), *[1] * copies], "a sum in bfloat16 would stop at 256"


@settings(max_examples=50)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=40))
def test_any_indices_are_taken_and_their_gradients_summed(indices: list[int]) -> None:
    gather = Gather(np.array(indices), 10, torch.device("cpu"))
    assert gather(torch.arange(10)[:, None])[:, 0].tolist() == indices
    places = torch.arange(len(indices), dtype=torch.float32)[:, None]
    sums = [sum(place for place, index in enumerate(indices) if index == token) for token in range(10)]
    assert gather.summed(places)[:, 0].tolist() == sums
