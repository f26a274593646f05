"""Tensors of a checkpoint besides its weights, read row by row: a rank reads what it holds of them."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from asyncrl.errors import LedgerError
from asyncrl.trainer.checkpoints.parts import stem_of
from asyncrl.trainer.ranks.sharding import local_rows


class Rows(Protocol):
    """A tensor, or one on disk of which rows can be read."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: Any, /) -> Tensor: ...


class StoredTensor:
    """A tensor of an open safetensors file."""

    def __init__(self, part: Any) -> None:
        self._part = part
        self.shape = tuple(part.get_shape())

    def __getitem__(self, rows: Any) -> Tensor:
        found: Tensor = self._part[rows]
        return found


Stored = Mapping[str, Rows]


@contextmanager
def open_tensors(folder: Path, files: Iterable[str]) -> Iterator[dict[str, dict[str, Rows]]]:
    """
    Open those of a checkpoint's ``files`` that lie in ``folder``: tensors by the name of their file and their own.

    Raises:
        LedgerError: A file is missing or damaged.
    """
    found: dict[str, dict[str, Rows]] = {}
    with ExitStack() as stack:
        for path in (folder.parent / name for name in files):
            if path.parent == folder:
                try:
                    file = stack.enter_context(safe_open(path, framework="pt"))
                except (OSError, SafetensorError) as error:
                    raise LedgerError(f"cannot read {path}: {error}; resume from an older checkpoint") from error
                tensors = {name: StoredTensor(file.get_slice(name)) for name in file.keys()}  # noqa: SIM118
                found.setdefault(stem_of(path.name), {}).update(tensors)
        yield found


@torch.no_grad()
def read_rows(target: Tensor, source: Rows) -> None:
    """Fill a tensor that may be sharded with this rank's rows of ``source``, which is whole."""
    local, rows = local_rows(target.detach())
    local.copy_(source[rows.start : rows.stop] if len(source.shape) else source[...])
