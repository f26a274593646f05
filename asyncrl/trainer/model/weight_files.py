"""Safetensors files of a model directory, read slice by slice: only the bytes that are asked for."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from asyncrl.config.model.weights import weight_files


class WeightFiles:
    """Open files of a model directory. Tensors have the dtype that they have on disk."""

    def __init__(self, slices: dict[str, Any]) -> None:
        self._slices = slices

    def __contains__(self, name: str) -> bool:
        return name in self._slices

    def read(self, name: str, index: tuple[slice, ...]) -> Tensor:
        part: Tensor = self._slices[name][index]
        return part


@contextmanager
def open_weights(model: Path) -> Iterator[WeightFiles]:
    """Open the files of a directory whose headers were checked."""
    with ExitStack() as stack:
        slices: dict[str, Any] = {}
        for path in weight_files(model):
            file = stack.enter_context(safe_open(path, framework="pt"))
            slices |= {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  not a mapping
        yield WeightFiles(slices)
