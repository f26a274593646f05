"""Which keys lie where, and what may be seen of them."""

import torch

from asyncrl.trainer.row import Piece, Row

CPU = torch.device("cpu")
ROW = Row([Piece(1), Piece(2), Piece(2, after=0), Piece(2, after=1), Piece(3, after=1)], CPU)
#          0         1 2       3 4                5 6                7 8 9


def test_what_a_piece_sees_lies_side_by_side() -> None:
    assert ROW.keys.tolist() == [0, 1, 2, 0, 3, 4, 1, 2, 5, 6, 1, 2, 7, 8, 9]


def test_kernels_are_told_where_pieces_and_what_they_see_begin() -> None:
    assert ROW.ends.tolist() == [0, 1, 3, 5, 7, 10]
    assert ROW.key_ends.tolist() == [0, 1, 3, 6, 10, 15]
    assert ROW.ends.dtype == ROW.key_ends.dtype == torch.int32
    assert ROW.longest == (3, 5)


def test_neighbours_of_one_length_are_a_run_however_long_what_is_before_them() -> None:
    assert [(run.length, run.prefixes, run.num_tokens, run.num_keys) for run in ROW.runs] == [
        (1, [0], 1, 1),
        (2, [0], 2, 2),
        (2, [1, 2], 4, 8),
        (3, [2], 3, 5),
    ]
    assert ROW.run_keys.tolist() == [0, 1, 2, 3, 0, 3, 4, 1, 2, 5, 6, 1, 2, 7, 8, 9]


def test_padding_is_not_seen_and_nobody_sees_ahead() -> None:
    beginning, _, run, alone = ROW.runs
    assert beginning.mask(None) is None, "causal, and no more"
    assert run.mask(None).int().tolist() == [[[[0, 1, 1, 0], [0, 1, 1, 1]]], [[[1, 1, 1, 0], [1, 1, 1, 1]]]]
    assert alone.mask(None).int().tolist() == [[[[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]]]


def test_a_window_ends_what_is_seen_and_one_that_is_never_full_does_not() -> None:
    (run,) = Row([Piece(4)], CPU).runs
    assert run.mask(4) is None
    assert run.mask(2).int().tolist() == [[[[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]]]
    assert ROW.runs[3].mask(2).int().tolist() == [[[[0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]]]
