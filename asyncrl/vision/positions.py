"""
Positions of text and pictures for multimodal rotary embedding: every token has a time, a row and a column.

    text       0 1 2 │            picture, 2 x 3 tokens             │ text
    time       0 1 2 │   3   3   3   3   3   3                      │ 6 7 …
    row        0 1 2 │   3   3   3   4   4   4                      │ 6 7 …
    column     0 1 2 │   3   4   5   3   4   5                      │ 6 7 …

A text token has the same number three times. A picture advances the count by its longer side only, so a text token
behind it has as its position its index in the sequence plus ``delta``, negative for all but the smallest pictures.
Source: Wang et al. 2024, arXiv:2409.12191, "Multimodal Rotary Position Embedding".
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asyncrl.errors import DataError

Grid = tuple[int, int, int]
"""Numbers of a picture's patches along time, height and width."""


def num_tokens(grid: Grid, merge_size: int) -> int:
    """Number of one picture's image tokens; each merges ``merge_size`` x ``merge_size`` patches."""
    return grid[0] * grid[1] * grid[2] // merge_size**2


def mrope_positions(
    prompt_ids: ArrayLike, grids: Sequence[Grid], *, image_token_id: int, merge_size: int
) -> tuple[NDArray[np.int64], int]:
    """
    Positions [3, L] of expanded token ids, and ``delta``: the token after them is at position ``L + delta``.

    ``prompt_ids`` [L] may include a completion. Raises `DataError` unless the image tokens match ``grids``.
    """
    ids = np.asarray(prompt_ids)
    starts = picture_starts(ids, [num_tokens(grid, merge_size) for grid in grids], image_token_id)
    positions = np.empty((3, len(ids)), dtype=np.int64)
    end = delta = 0
    for start, (time, height, width) in zip(starts, grids, strict=True):
        positions[:, end:start] = np.arange(end, start) + delta
        shape = time, height // merge_size, width // merge_size
        end = start + shape[0] * shape[1] * shape[2]
        positions[:, start:end] = np.indices(shape).reshape(3, -1) + start + delta
        delta += max(shape[1:]) - (end - start)
    positions[:, end:] = np.arange(end, len(ids)) + delta
    return positions, delta


def picture_starts(ids: NDArray[np.integer], counts: Sequence[int], image_token_id: int) -> list[int]:
    """Index of each picture's first token; `DataError` unless the n-th has ``counts[n]`` adjacent image tokens."""
    (places,) = np.nonzero(ids == image_token_id)
    if len(places) != sum(counts):
        raise DataError(
            f"the pictures of a prompt have {sum(counts)} tokens by their files, but the prompt has {len(places)}; "
            f"give each picture the width and height of its file"
        )
    firsts = np.cumsum([0, *counts])
    for number, (first, last) in enumerate(zip(firsts, firsts[1:] - 1, strict=False), 1):
        if places[last] - places[first] != last - first:
            raise DataError(
                f"the {last - first + 1} tokens of picture {number} are not adjacent in the prompt; the text must not "
                f"spell the token that stands for a picture"
            )
    return [int(places[first]) for first in firsts[:-1]]
