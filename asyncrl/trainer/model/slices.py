"""
The part of each checkpoint tensor that this rank holds.

    parameter     rows 0 ··· 7 of experts.gate_up_proj [8, 2I, H]        rank 0 holds rows 0 to 3, rank 1 the others
    checkpoint    experts.5.up_proj.weight [I, H]                        lies in row 5: all of it is rank 1's
                  model.embed_tokens.weight [V, H]                       each rank has half of its rows

A parameter is sharded by rows, its first dimension. A checkpoint tensor is a strided view of a parameter, so what a
rank has of it is a range along one dimension of the view, or all of it, or nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import NamedTuple

from torch import Tensor

from asyncrl.errors import BrokenInvariant
from asyncrl.trainer.ranks.sharding import local_rows
from asyncrl.weights.contents.names import View


class Slice(NamedTuple):
    """Elements ``where`` of the checkpoint tensor ``name``, in ``tensor``: a view of this rank's memory."""

    name: str
    where: tuple[slice, ...]
    tensor: Tensor


def local_slices(parameters: Mapping[str, Tensor], views: Iterable[View]) -> Iterator[Slice]:
    """Non-empty slices that this rank holds of the checkpoint tensors of parameters, which may be sharded by rows."""
    for view in views:
        tensor = parameters[view.parameter].detach()
        local, rows = local_rows(tensor)
        index = held(view, tuple(tensor.shape), rows)
        if index is not None:
            yield Slice(view.name, index, _view(local, view, index, rows.start * prod(tensor.shape[1:])))


def held(view: View, shape: tuple[int, ...], rows: range) -> tuple[slice, ...] | None:
    """Index of a view's elements that lie in these rows of its parameter, which has ``shape``; None if none does."""
    row_items = prod(shape[1:])
    if not row_items * len(rows):
        return None
    first = view.offset // row_items
    index = [slice(0, size) for size in view.shape]
    across = [dim for dim, size in enumerate(view.shape) if size > 1 and view.stride[dim] >= row_items]
    if len(across) > 1:
        raise BrokenInvariant(f"{view.name} goes through the rows of {view.parameter} along dimensions {across}")
    if not across:
        return tuple(index) if first in rows else None
    (dim,) = across
    step = view.stride[dim] // row_items
    start, stop = (min(max(-(-(row - first) // step), 0), view.shape[dim]) for row in (rows.start, rows.stop))
    index[dim] = slice(start, stop)
    return tuple(index) if start < stop else None


def _view(local: Tensor, view: View, index: tuple[slice, ...], skipped_items: int) -> Tensor:
    """The elements ``index`` of a view, in a rank's rows, which come after ``skipped_items`` elements of others."""
    starts = sum(part.start * stride for part, stride in zip(index, view.stride, strict=True))
    offset = local.storage_offset() + view.offset + starts - skipped_items
    return local.as_strided([part.stop - part.start for part in index], view.stride, offset)
