"""Positions of text and pictures against transformers' `get_rope_index`."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

from asyncrl.errors import DataError
from asyncrl.vision.positions import Grid, mrope_positions, num_tokens

PAD = 99


def positions(ids: list[int], *grids: Grid) -> tuple[np.ndarray, int]:
    return mrope_positions(ids, grids, image_token_id=PAD, merge_size=2)


def test_text_alone_counts() -> None:
    found, delta = positions([5, 6, 7])
    assert delta == 0
    assert found.tolist() == [[0, 1, 2]] * 3


def test_the_text_after_a_picture_goes_on_behind_its_longer_side() -> None:
    found, delta = positions([5, 6, 7, *[PAD] * 6, 8, 9], (1, 4, 6))
    assert found[0].tolist() == [0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 7]
    assert found[1].tolist() == [0, 1, 2, 3, 3, 3, 4, 4, 4, 6, 7]
    assert found[2].tolist() == [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7]
    assert delta == -3


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([3, (1, 4, 6), 2], id="one picture"),
        pytest.param([(1, 2, 2), 1, (1, 12, 2), 4], id="two pictures, the first at the start"),
        pytest.param([2, (1, 4, 4), 1, (1, 4, 4), 1, (1, 2, 10)], id="three pictures, the last at the end"),
        pytest.param([7], id="no picture"),
    ],
)
def test_positions_are_those_of_transformers(vision_model: Path, parts: list[int | Grid]) -> None:
    model = AutoModelForImageTextToText.from_pretrained(vision_model, local_files_only=True).model
    pad = model.config.image_token_id
    grids = [part for part in parts if isinstance(part, tuple)]
    runs = [[5] * part if isinstance(part, int) else [pad] * num_tokens(part, 2) for part in parts]
    ids = [token for run in runs for token in run]
    found, delta = mrope_positions(ids, grids, image_token_id=pad, merge_size=2)
    row = torch.tensor([ids])
    expected, deltas = model.get_rope_index(row, (row == pad).int(), torch.tensor(grids) if grids else None)
    assert found.tolist() == expected[:, 0].tolist()
    assert delta == deltas.item()


def test_a_picture_of_another_size_than_its_tokens_is_refused() -> None:
    with pytest.raises(DataError, match="have 4 tokens by their files, but the prompt has 6"):
        positions([PAD] * 6, (1, 4, 4))


def test_tokens_of_a_picture_that_are_apart_are_refused() -> None:
    with pytest.raises(DataError, match="the 4 tokens of picture 2 are not adjacent"):
        positions([PAD, 5, PAD, PAD, 5, PAD, PAD], (1, 2, 2), (1, 4, 4))
