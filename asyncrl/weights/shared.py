"""
Staging buffers that other processes of this machine map, so that weights reach an engine's processes without a copy.

    shared_staging(layout) ─▶ tensors ─▶ SharedTensors.of ── as JSON ─▶ another process: SharedTensors.map, to read
       └─ shared_path ─▶ another process: shared_staging(layout, path), to write

The memory is an anonymous file. It is in no folder, so nothing is left of it when its processes end, however they do,
and the size of /dev/shm does not bound it. Other processes open it below /proc, as those of the same user may.
"""

import os
import weakref
from collections.abc import Mapping
from itertools import accumulate

import torch
from msgspec import Struct
from torch import Tensor

from asyncrl.errors import EngineError, TransferError
from asyncrl.weights.contents.layout import ALIGN_BYTES, Bucket, Layout, TensorSlot, TensorSpec
from asyncrl.weights.staging import Staging, views


class SharedTensors(Struct, frozen=True):
    """Place of tensors in shared memory."""

    path: str
    """File below /proc, for as long as its owner has a tensor in the memory."""
    bucket: Bucket
    """The memory as one bucket."""

    @classmethod
    def locate(cls, tensors: Mapping[str, Tensor]) -> "SharedTensors":
        """Place of ``tensors``, one or more; raises `EngineError` unless all are views of one `shared_staging`."""
        path = next(iter(tensors.values())).untyped_storage().filename or ""
        for name, tensor in tensors.items():
            if not path or tensor.untyped_storage().filename != path or not tensor.is_contiguous():
                raise EngineError(
                    f"the engine's processes load weights from memory that they share, but {name} is not in it; use "
                    f"the staging buffers of asyncrl.weights.shared",
                    retryable=False,
                )
        slots = []
        for name, tensor in tensors.items():
            dtype = str(tensor.dtype).removeprefix("torch.")
            spec = TensorSpec(name=name, shape=tuple(tensor.shape), dtype=dtype)
            slots.append(TensorSlot(spec, int(tensor.storage_offset()) * tensor.itemsize))
        return cls(path, Bucket(tuple(slots), max(slot.offset + slot.spec.num_bytes for slot in slots)))

    def map(self) -> dict[str, Tensor]:
        """
        Tensors by name, mapped and not copied. What is written to them stays in this process.

        Raises:
            TransferError: Their owner has freed them, or this process may not read the owner's memory.
        """
        return views(self.bucket, _mapped(self.path, self.bucket.num_bytes, can_write=False))


def shared_staging(layout: Layout, path: str = "") -> Staging:
    """
    Staging buffers in host memory that other processes can map: the size of the layout, once for all of them.

    For Linux. Raises `TransferError` if /proc is not mounted.

    Args:
        path: `shared_path` of another process's buffers, of an equal layout, which are mapped then; `TransferError` is
            also raised if they cannot be.
    """
    sizes = [bucket.num_bytes for bucket in layout.buckets]
    *starts, end = accumulate((-(-size // ALIGN_BYTES) * ALIGN_BYTES for size in sizes), initial=0)
    memory = _mapped(path, end, can_write=True) if path else _created(end)
    buckets = [memory[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    return Staging(layout, memory.device, buckets=buckets)


def shared_path(staging: Staging) -> str:
    """File below /proc of buffers that this process made with `shared_staging`; empty if they have no bytes."""
    return next((bucket.untyped_storage().filename or "" for bucket in staging.buckets), "")


def _created(num_bytes: int) -> Tensor:
    descriptor = os.memfd_create("asyncrl-weights")
    try:
        memory = _mapped(f"/proc/{os.getpid()}/fd/{descriptor}", num_bytes, can_write=True)
    except BaseException:
        os.close(descriptor)
        raise
    weakref.finalize(memory.untyped_storage(), os.close, descriptor)  # with the last tensor in it
    return memory


def _mapped(path: str, num_bytes: int, *, can_write: bool) -> Tensor:
    """[num_bytes] uint8: a file, enlarged to that size by a writer. Readers map it as vLLM maps files of weights."""
    try:
        return torch.from_file(path, shared=can_write, size=num_bytes, dtype=torch.uint8, device="cpu")
    except RuntimeError as error:
        raise TransferError(f"shared weights cannot be mapped: {str(error).splitlines()[0]}") from error
