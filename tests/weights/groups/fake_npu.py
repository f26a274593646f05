"""
Fake torch_npu for machines without Ascend: two ``npu`` devices, and a collective library with HCCL's interface.

Tests install it as ``torch_npu`` (see `installed_at`), so that the code under test imports it in place of the real one.
The import renames torch's private device for good, so it needs a process of its own. Tensors stay in CPU memory, and
gloo sends them: only the code around the library is tested. FAKE_NPU in the environment selects a failure.

    whole       none
    no_cann     the import fails, as without libhccl.so
    idle        broadcasts end at once, and send nothing
    forgetful   the same for all broadcasts but the first
"""

import importlib.machinery
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

NUM_DEVICES = 2
MADE: list[dict[str, object]] = []
"""Options of each group, for assertions."""


def installed_at(folder: Path, failing: str = "whole") -> dict[str, str]:
    """Environment of processes in which it is the installed torch_npu."""
    shutil.copy(__file__, folder / "torch_npu.py")
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path, "FAKE_NPU": failing, "OMP_NUM_THREADS": "1"}


class _Work:
    """A broadcast that sends nothing."""

    def is_completed(self) -> bool:
        return True

    def wait(self) -> None: ...


class _Hccl:
    def __init__(self, options: Any) -> None:
        gloo: Any = dist.ProcessGroupGloo
        self._gloo = gloo(options.store, options.group_rank, options.group_size, timeout=options.timeout)
        self._broadcasts = 0
        self._failing = os.environ["FAKE_NPU"]
        variables = {key: value for key, value in os.environ.items() if "HCCL" in key}
        self._made: dict[str, object] = {"ranks": list(options.global_ranks_in_group), "environment": variables}
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
    untyped: Any = torch
    untyped.utils.rename_privateuse1_backend("npu")
    npu: Any = ModuleType("torch.npu")
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
