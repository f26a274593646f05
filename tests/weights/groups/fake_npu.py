"""
Stands in for torch_npu on a machine without Ascend: two devices called npu, and a collective library with HCCL's shape.

Tests put it on the path as ``torch_npu`` (see `installed_at`), so that it is imported where the real one is. Importing
it renames torch's private device for good, so only processes made for it may. Tensors stay in the CPU's memory, and
gloo moves them: what is tested is all that lies around the library. FAKE_NPU in the environment chooses how it fails.

    whole       it works
    no_cann     it cannot be imported, as without libhccl.so
    idle        broadcasts end at once, and move nothing
    forgetful   so do all but the first
"""

import importlib.machinery
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist

NUM_DEVICES = 2
MADE: list[dict[str, object]] = []
"""What each group was made with, for tests to look at."""


def installed_at(folder: Path, failing: str = "whole") -> dict[str, str]:
    """An environment for processes that find it as an installed torch_npu."""
    shutil.copy(__file__, folder / "torch_npu.py")
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path, "FAKE_NPU": failing, "OMP_NUM_THREADS": "1"}


class _Work:
    """Of a broadcast that does not happen."""

    def is_completed(self) -> bool:
        return True

    def wait(self) -> None: ...


class _Hccl:
    def __init__(self, options: object) -> None:
        self._gloo = dist.ProcessGroupGloo(
            options.store, options.group_rank, options.group_size, timeout=options.timeout
        )
        self._broadcasts = 0
        self._failing = os.environ["FAKE_NPU"]
        told = {key: value for key, value in os.environ.items() if "HCCL" in key}
        self._made: dict[str, object] = {"ranks": list(options.global_ranks_in_group), "environment": told}
        MADE.append(self._made)

    def broadcast(self, tensors: list[torch.Tensor], options: object) -> object:
        self._broadcasts += 1
        if self._failing == "idle" or (self._failing == "forgetful" and self._broadcasts > 1):
            return _Work()
        return self._gloo.broadcast(tensors, options)

    def abort(self) -> None:
        self._made["aborted"] = True


def _in_host_memory(create: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def created(*args: object, device: torch.device | None = None, **kwargs: object) -> torch.Tensor:
        on_npu = device is not None and torch.device(device).type == "npu"
        return create(*args, device="cpu" if on_npu else device, **kwargs)

    return created


def _become_torch_npu() -> None:
    if os.environ["FAKE_NPU"] == "no_cann":
        raise ImportError("libhccl.so: cannot open shared object file: No such file or directory")
    torch.utils.rename_privateuse1_backend("npu")
    npu = ModuleType("torch.npu")
    npu.is_available = lambda: True
    npu.device_count = lambda: NUM_DEVICES
    npu.current_device = lambda: 0
    npu.set_device = lambda device: None
    npu._is_in_bad_fork = lambda: False
    npu.manual_seed_all = lambda seed: None
    torch._register_device_module("npu", npu)
    sys.modules["torch.npu"] = npu
    for name in ("empty", "full", "zeros"):
        setattr(torch, name, _in_host_memory(getattr(torch, name)))
    dist.Backend.register_backend("hccl", lambda options, _: _Hccl(options), extended_api=True, devices=["npu"])


if __name__ == "torch_npu":
    __spec__ = importlib.machinery.ModuleSpec("torch_npu", None)
    _become_torch_npu()
