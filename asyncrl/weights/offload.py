"""
Memory of a device that is moved to the host for a while, and back. The tensors in it remain the same objects.

    park     storage ─ copy ─▶ host memory, page-locked       the device's memory is freed
    fetch    storage ◀─ copy ─ host memory                    tensors and their views are valid again

Memory that is on the host already stays where it is: on a CPU nothing moves.
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from asyncrl.weights.groups.device import empty_cache


class Offloader:
    """Moves device memory of one owner to the host and back. A storage moves once, however many tensors are in it."""

    def __init__(self) -> None:
        self._kept: list[tuple[Tensor, Tensor]] = []
        """All elements of a storage on a device, and their copy on the host."""
        self._freed: list[Tensor] = []
        """All elements of a storage on a device, without a copy."""

    @torch.no_grad()
    def offload(self, kept: Iterable[Tensor], freed: Iterable[Tensor] = ()) -> int:
        """
        Free the devices' memory of all these tensors, and return the number of bytes moved to the host.

        Args:
            kept: Have their values again after `onload`.
            freed: Are zero after `onload`.
        """
        kinds = set[str]()
        for tensor in freed:
            if (on_device := _on_device(tensor)) is not None:
                self._freed.append(on_device)
                kinds.add(on_device.device.type)
                on_device.untyped_storage().resize_(0)
        for tensor in kept:
            if (on_device := _on_device(tensor)) is not None:
                on_host = torch.empty(len(on_device), dtype=tensor.dtype, pin_memory=True)
                self._kept.append((on_device, on_host.copy_(on_device)))
                kinds.add(on_device.device.type)
                on_device.untyped_storage().resize_(0)
        for kind in kinds:
            empty_cache(kind)  # Other processes need what torch keeps for this one.
        return sum(on_host.nbytes for _, on_host in self._kept)

    @torch.no_grad()
    def onload(self) -> None:
        """Bring all memory back to its devices. No error if none was moved."""
        for on_device in self._freed:
            on_device.untyped_storage().resize_(on_device.nbytes)
            on_device.zero_()
        for on_device, on_host in self._kept:
            on_device.untyped_storage().resize_(on_device.nbytes)
            on_device.copy_(on_host)
        self._freed.clear()
        self._kept.clear()


def _on_device(tensor: Tensor) -> Tensor | None:
    """
    [n] elements of the whole storage that ``tensor`` is in, or this process's part of it if it is sharded.

    None for a storage on the host, and for one that is parked already: another tensor is in it.
    """
    own = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
    num_bytes = own.untyped_storage().nbytes()
    if own.device.type == "cpu" or not num_bytes:
        return None
    return own.as_strided((num_bytes // own.itemsize,), (1,), 0)
