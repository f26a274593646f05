"""
Safetensors files that are written tensor by tensor, from the shapes known before: one tensor is in memory at a time.

    header      dtype, shape and place of each tensor, in the order in which safetensors itself places them
    values      each written at its place as it comes, in any order

What was written waits in the system's page cache until the disk takes it. Writing takes about twice the time of a copy
in memory, until so much waits that the system slows the writer down to the speed of the disk.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from asyncrl.errors import BrokenInvariant

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
"""Their names in a header."""
ALIGNED = 8
"""Values begin at a multiple of this."""


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
            file.write(_bytes(tensor))
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


def _bytes(tensor: Tensor) -> memoryview:
    """A tensor's values in memory of the host, where a tensor of a CPU is already."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
