"""
State of a learner between two steps, from which its ranks write a checkpoint while the next steps train, and read it
back.

    gathered tensor by tensor ─▶ own part ─▶ files, in the page cache ─▶ disk      digests, flush: beside the next steps
                                         └─▶ copies on the host                    without a folder to write to

Files take no memory of the process beyond one tensor: the system keeps as much of them as it has room for, and slows
the writer down to the speed of its disk beyond that.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch
from msgspec import Struct
from safetensors import SafetensorError, safe_open
from torch import Tensor

from asyncrl.errors import BrokenInvariant, LedgerError
from asyncrl.trainer.ranks.sharding import full_tensor, local_rows

# ── parts ─────────────────────────────────────────────────────────────────────────────────────
# Which rank writes which tensor of a checkpoint.
#
#   tensors, in order     a b c d e f g h         two ranks of a machine, about the same bytes each
#                         └─ 0 ─┘ └─ 1 ─┘
#   files                 model-00001-of-00002.safetensors, model-00002-of-00002.safetensors, and an index of the names
#
# Each tensor is whole in one file, so a checkpoint is a Hugging Face directory from which any number of ranks can
# resume.

MODEL = "model"
"""Stem of the files of weights."""
TENSORS = "trainer"
"""Folder of the tensors that are not weights of the model."""


class CheckpointPart(Struct, frozen=True):
    """One of ``count`` parts of a checkpoint."""

    index: int = 0
    count: int = 1

    def file(self, stem: str) -> str:
        """Name of this part's file, as Hugging Face numbers them."""
        return (
            f"{stem}.safetensors" if self.count == 1 else f"{stem}-{self.index + 1:05}-of-{self.count:05}.safetensors"
        )


def stem_of(file: str) -> str:
    """The ``stem`` of the name of a part's file."""
    stem = file.removesuffix(".safetensors")
    return stem[: -len("-00001-of-00001")] if "-of-" in stem else stem


def divide(sizes: Mapping[str, int], count: int) -> dict[str, int]:
    """Part of each tensor by its bytes: parts are contiguous and about equal."""
    total, before = max(sum(sizes.values()), 1), 0
    parts = {}
    for name, size in sizes.items():
        parts[name] = min(before * count // total, count - 1)
        before += size
    return parts


# ── tensor file ───────────────────────────────────────────────────────────────────────────────
# Safetensors files that are written tensor by tensor, from the shapes known before: one tensor is in memory at a
# time.
#
#     header      dtype, shape and place of each tensor, in the order in which safetensors itself places them
#     values      each written at its place as it comes, in any order
#
# What was written waits in the system's page cache until the disk takes it. Writing takes about twice the time of a
# copy in memory, until so much waits that the system slows the writer down to the speed of the disk.

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
"""Names of dtypes in the header of a safetensors file."""
ALIGNED = 8
"""Alignment of the values in a file, bytes."""


def write_tensors(path: Path, empty: Mapping[str, Tensor], tensors: Iterable[tuple[str, Tensor]]) -> None:
    """
    Write a file of the tensors named in ``empty``, which have their shapes and dtypes and no values.

    Args:
        tensors: Read to its end; those with other names are left out.

    Raises:
        OSError: The disk failed.
        BrokenInvariant: A tensor did not come, or in another shape or dtype.
    """
    places, missing = _places(empty), set(empty)
    header = _header(empty, places)
    with path.open("wb") as file:
        file.write(header)
        for name, tensor in tensors:
            if name not in places:
                continue
            if (tensor.shape, tensor.dtype) != (empty[name].shape, empty[name].dtype):
                raise BrokenInvariant(
                    f"{path}: {name} is {tensor.dtype} {tuple(tensor.shape)}, unlike it was announced"
                )
            file.seek(len(header) + places[name])
            values = tensor.detach().cpu().contiguous().reshape(-1)  # no copy of what is on the host already
            file.write(values.view(torch.uint8).numpy().data)
            missing.discard(name)
    if missing:
        raise BrokenInvariant(f"{path}: {', '.join(sorted(missing))} did not come")


def _places(empty: Mapping[str, Tensor]) -> dict[str, int]:
    """Offset of each tensor among the values; the largest elements come first, so that all are aligned."""
    places, offset = {}, 0
    for name in sorted(empty, key=lambda name: (-empty[name].itemsize, name)):
        places[name] = offset
        offset += empty[name].nbytes
    return places


def _header(empty: Mapping[str, Tensor], places: Mapping[str, int]) -> bytes:
    entries = {
        name: {
            "dtype": DTYPES[empty[name].dtype],
            "shape": list(empty[name].shape),
            "data_offsets": [offset, offset + empty[name].nbytes],
        }
        for name, offset in places.items()
    }
    header = msgspec.json.encode({"__metadata__": {"format": "pt"}, **entries})
    header += b" " * (-len(header) % ALIGNED)
    return len(header).to_bytes(8, "little") + header


# ── snapshot ──────────────────────────────────────────────────────────────────────────────────

OPTIMIZER = "optimizer"
"""Name of the optimizer's state in `Snapshot.tensors`."""
ADAPTERS = "adapters"
"""Name of LoRA's adapters in `Snapshot.tensors`; the weights of a checkpoint have them merged."""


class Snapshot(Struct, frozen=True, kw_only=True, eq=False):
    """One rank's part of the state of a learner between two steps; later steps do not change it."""

    configs: list[Any]
    """Configs of the model, of transformers, which the first rank writes."""
    part: CheckpointPart = CheckpointPart()
    files: list[str] = []
    """Files that the own part was written to, by path in the checkpoint; empty if it is in the next fields."""
    weights: dict[str, Tensor] = {}
    """This rank's part of the weights, by their names in a checkpoint."""
    weight_parts: dict[str, int]
    """Part of each weight, in the order of the weights."""
    tensors: dict[str, dict[str, Tensor]] = {}
    """This rank's part of other learned tensors by file name, such as the optimizer's moments."""
    state: dict[str, float] = {}
    """Learned scalars, such as an adaptive coefficient."""
    random_state: bytes
    """State of torch's CPU generator."""


class OwnPart:
    """
    Takes the tensors of one part, while those of all parts are gathered one after the other.

    Args:
        folder: Written to; None copies to the host.
    """

    def __init__(self, part: CheckpointPart, folder: Path | None) -> None:
        self._part = part
        self._folder = folder if part.index < part.count else None  # A rank of another machine has no part.
        self.files: list[str] = []
        """Files that were written."""

    def take(
        self, stem: str, parts: Mapping[str, int], empty: Mapping[str, Tensor], tensors: Iterable[tuple[str, Tensor]]
    ) -> dict[str, Tensor]:
        """
        Write the own tensors to the file with this stem, or return copies of them.

        Args:
            parts: Part of each tensor.
            empty: Each tensor without values, on ``meta``.
            tensors: Each tensor, borrowed until the next one.
        """
        own = {name: tensor for name, tensor in empty.items() if parts[name] == self._part.index}
        if self._folder is None:
            return {name: host_copy(tensor) for name, tensor in tensors if name in own}
        file = self._part.file(stem)
        write_tensors(self._folder / file, own, tensors)
        self.files.append(file)
        return {}


def gathered(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Each tensor, whole. Collective for sharded ones."""
    for name, tensor in tensors.items():
        yield name, full_tensor(tensor.detach())


def emptied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of the same shapes and dtypes on ``meta``; whole for sharded ones."""
    return {name: torch.empty(one.shape, dtype=one.dtype, device="meta") for name, one in tensors.items()}


def host_copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


# ── stored ────────────────────────────────────────────────────────────────────────────────────
# Tensors of a checkpoint besides its weights, read row by row: a rank reads what it holds of them.


class RowSource(Protocol):
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


Stored = Mapping[str, RowSource]


@contextmanager
def open_tensors(folder: Path, files: Iterable[str]) -> Iterator[dict[str, dict[str, RowSource]]]:
    """
    Open those of a checkpoint's ``files`` that lie in ``folder``: tensors by the name of their file and their own.

    Raises:
        LedgerError: A file is missing or damaged.
    """
    found: dict[str, dict[str, RowSource]] = {}
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
def read_rows(target: Tensor, source: RowSource) -> None:
    """Fill a tensor that may be sharded with this rank's rows of ``source``, which is whole."""
    local, rows = local_rows(target.detach())
    local.copy_(source[rows.start : rows.stop] if len(source.shape) else source[...])
