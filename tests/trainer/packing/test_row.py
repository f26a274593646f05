import numpy as np
import torch

from asyncrl.trainer.packing.row import Row

#   tokens    p p p a a b b b q q c
#   places    0 1 2 3 4 5 6 7 8 9 10
LONG, SHORT, OTHER = [0, 1, 2, 5, 6, 7], [0, 1, 2, 3, 4], [8, 9, 10]
ROW = Row([np.array(places) for places in (LONG, SHORT, OTHER)], torch.device("cpu"))


def test_sequences_are_whole_and_shorter_ones_come_first() -> None:
    assert ROW.indices.tolist() == OTHER + SHORT + LONG
    assert ROW.lengths == [3, 5, 6]


def test_kernels_are_told_where_sequences_begin_and_end() -> None:
    assert ROW.ends.tolist() == [0, 3, 8, 14]
    assert ROW.ends.dtype == torch.int32


def test_each_row_index_has_one_first_occurrence() -> None:
    assert ROW.indices[ROW.firsts].tolist() == list(range(11))
    assert ROW.firsts.tolist() == [3, 4, 5, 6, 7, 11, 12, 13, 0, 1, 2]
