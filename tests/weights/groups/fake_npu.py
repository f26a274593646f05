"""
Fake torch_npu for machines without Ascend: ``npu`` devices as strict as torch's, and a collective library with HCCL's
interface.

    operation ─▶ DeviceTensor ─▶ are all its tensors on one device? is it the thread's current one? ─▶ CPU

Tests install it as ``torch_npu`` (see `installed_at`), so that the code under test imports it in place of the real one.
The import renames torch's private device for good, so it needs a process of its own. Values stay in CPU memory, gloo
sends them, and each tensor knows its device, so that these mistakes are found without hardware:

    `set_device` of a device without an index             ValueError, with torch's words
    an operation on tensors of two devices                RuntimeError, with torch's words
    an operation on a device that is not the thread's     listed in `STRAYS`

The current device belongs to a thread, and is 0 in a new one. Gradients flow on ``npu:0`` only: torch's engine knows
one device of a backend in Python. FAKE_NPU in the environment selects a failure.

    whole       none
    no_cann     the import fails, as without libhccl.so
    idle        broadcasts end at once, and send nothing
    forgetful   the same for all broadcasts but the first
"""

import importlib.machinery
import os
import shutil
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._device import _device_constructors
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NUM_DEVICES = 2
DEVICE_BYTES = 64 << 30
MADE: list[dict[str, object]] = []
"""Options of each group, for assertions."""
STRAYS: list[str] = []
"""Operations on a device that was not the current one of their thread."""
PINNED: list[int] = []
"""Elements of each page-locked tensor."""
_ALIVE: dict[int, "weakref.ref[torch.UntypedStorage]"] = {}
"""Storages on devices, by address."""
_LOCKED: set[int] = set()
"""Addresses of page-locked storages."""
RECORDED: list["Stream"] = []
"""Streams that use tensors of other streams."""
COPIES = ("_to_copy", "copy_", "_copy_from")
"""Operations between devices."""
INDEXED = ("index", "index_put_", "_index_put_impl_")
"""Operations whose indices may be in host memory."""


def installed_at(folder: Path, failing: str = "whole") -> dict[str, str]:
    """Environment of processes in which it is the installed torch_npu."""
    shutil.copy(__file__, folder / "torch_npu.py")
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path, "FAKE_NPU": failing, "OMP_NUM_THREADS": "1"}


# ── tensors ─────────────────────────────────────────────────────────────────────────────────


class DeviceTensor(torch.Tensor):
    """A tensor on a device of the fake, with its values in the CPU tensor ``held``."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor, device: torch.device) -> "DeviceTensor":
        untyped: Any = torch.Tensor
        layout = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        with torch.inference_mode(False):  # torch sets the version counters of views, which inference tensors lack
            wrapper: DeviceTensor = untyped._make_wrapper_subclass(cls, held.shape, device=device, **layout)
        wrapper.held = held
        storage = held.untyped_storage()
        if storage._cdata not in _ALIVE:
            _ALIVE[storage._cdata] = weakref.ref(storage)
            weakref.finalize(storage, _ALIVE.pop, storage._cdata)
        return wrapper

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, other: torch.Tensor) -> None:
        torch.Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        self.held = _held(other)

    def record_stream(self, stream: Any) -> None:
        RECORDED.append(stream)

    def tolist(self) -> Any:  # torch has none for subclasses
        return self.cpu().tolist()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.held.untyped_storage()

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"{self.held!r} on {self.device}"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if (parts := func.decompose(*args, **kwargs)) is not NotImplemented:  # made of other operations
            return parts
        name = func.overloadpacket.__name__
        device = _device_of(name, args, kwargs)
        if not func.is_view:
            _require_current(name, device)
        target = device if kwargs.get("device") is None else _indexed(torch.device(kwargs["device"]))
        on_host = {key: torch.device("cpu") if key == "device" else value for key, value in kwargs.items()}
        is_pinned = on_host.pop("pin_memory", None)
        result = func(*_mapped(_held, args), **_mapped(_held, on_host))
        if is_pinned:
            _mark_pinned(result)
        known = {id(tensor.held): tensor for tensor in _device_tensors(args, kwargs)}  # results of in-place operations

        def wrapped(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or target.type == "cpu" or _is_host_result(name, args):
                return value
            if (tensor := known.get(id(value))) is None:
                return DeviceTensor(value, target)
            if tensor.shape != value.shape:  # an ``out`` was resized
                tensor.data = DeviceTensor(value, target)
            return tensor

        return _mapped(wrapped, result)


def device_bytes() -> int:
    """Bytes of all tensors that are on devices now."""
    found = [storage() for storage in list(_ALIVE.values())]  # other threads make and drop tensors meanwhile
    return sum(storage.nbytes() for storage in found if storage is not None)


def _mapped(function: Callable[[Any], Any], nested: Any) -> Any:
    """The same structure of results; torch's `tree_map` takes most of the time of an operation."""
    if isinstance(nested, list | tuple):
        return type(nested)([_mapped(function, value) for value in nested])
    if isinstance(nested, dict):
        return {key: _mapped(function, value) for key, value in nested.items()}
    return function(nested)


def _held(value: Any) -> Any:
    return value.held if isinstance(value, DeviceTensor) else value


def _device_tensors(*nested: Any) -> list[DeviceTensor]:
    found: list[DeviceTensor] = []
    _mapped(lambda value: found.append(value) if isinstance(value, DeviceTensor) else None, nested)
    return found


def _is_host_result(name: str, args: tuple[Any, ...]) -> bool:
    """True for a copy into a tensor of the host."""
    return name == "copy_" and not isinstance(args[0], DeviceTensor)


def _device_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """The device of an operation; raises `RuntimeError`, as torch does, if its tensors are on several."""
    tensors: list[torch.Tensor] = []
    _mapped(lambda value: tensors.append(value) if isinstance(value, torch.Tensor) else None, (args, kwargs))
    own = next(tensor.device for tensor in tensors if isinstance(tensor, DeviceTensor))
    if name in COPIES:
        return own
    if name in INDEXED:
        indices = {id(index) for index in args[1] if index is not None}
        tensors = [tensor for tensor in tensors if tensor.device.type != "cpu" or id(tensor) not in indices]
    for tensor in tensors:
        if tensor.device != own and not (tensor.device.type == "cpu" and tensor.dim() == 0):
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {own} and "
                f"{tensor.device}! (in {name})"
            )
    return own


# ── devices ─────────────────────────────────────────────────────────────────────────────────

_CURRENT = threading.local()


class Stream:
    """A queue of operations of one device: the given one, or the current one of the thread that makes it."""

    def __init__(self, device: torch.device | int | None = None, priority: int = 0) -> None:
        index = current_device() if device is None else torch._utils._get_device_index(device, optional=True)
        self.device = torch.device("npu", index)

    def synchronize(self) -> None: ...

    def wait_event(self, event: "Event") -> None: ...

    def record_event(self, event: "Event | None" = None) -> "Event":
        return event or Event()

    def wait_stream(self, other: "Stream") -> None:
        """Raises `RuntimeError` for a stream of another device, as events do."""
        if other.device != self.device:
            raise RuntimeError(f"a stream of {self.device} waits for one of {other.device}")


class Event:
    """A mark in a stream."""

    def __init__(self, **_: object) -> None: ...

    def record(self, stream: Stream | None = None) -> "Event":
        return self

    def wait(self, stream: Stream | None = None) -> None: ...

    def synchronize(self) -> None: ...


def current_device() -> int:
    return getattr(_CURRENT, "index", 0)


def set_device(device: torch.device | int | str) -> None:
    """Raises `ValueError` for a device without an index, as ``torch.cuda.set_device`` does."""
    index = torch._utils._get_device_index(device)
    if not 0 <= index < NUM_DEVICES:
        raise RuntimeError(f"invalid device ordinal {index}")
    _CURRENT.index = index


@contextmanager
def use_device(device: torch.device | int) -> Iterator[None]:
    before = current_device()
    set_device(device)
    try:
        yield
    finally:
        set_device(before)


@contextmanager
def use_stream(stream: Stream) -> Iterator[None]:
    """Make a stream, and with it its device, current."""
    with use_device(stream.device):
        before, _CURRENT.stream = current_stream(), stream
        try:
            yield
        finally:
            _CURRENT.stream = before


def current_stream(device: torch.device | None = None) -> Stream:
    """That of the thread; raises `RuntimeError` for a device that is not its current one, where nobody computes."""
    if device is not None and device.index != current_device():
        raise RuntimeError(f"the stream of {device} was asked for, but the thread's device is {current_device()}")
    stream: Stream | None = getattr(_CURRENT, "stream", None)
    return stream if stream and stream.device.index == current_device() else Stream()


def _indexed(device: torch.device) -> torch.device:
    return device if device.type == "cpu" or ":" in str(device) else torch.device("npu", current_device())


def _require_current(name: str, device: torch.device) -> None:
    if device.index != current_device():
        STRAYS.append(f"{name} on {device} in {threading.current_thread().name}, whose device is {current_device()}")


def _empty(size: Any, *, dtype: Any = None, device: Any = None, **_: object) -> DeviceTensor:
    return _made(torch.empty(size, dtype=dtype), device)


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, device: Any = None, **_: object) -> DeviceTensor:
    return _made(torch.empty_strided(size, stride, dtype=dtype), device)


def _made(held: torch.Tensor, device: Any) -> DeviceTensor:
    where = _indexed(torch.device(device))
    _require_current("empty", where)
    return DeviceTensor(held, where)


def _copy_from(source: torch.Tensor, target: torch.Tensor, _non_blocking: bool = False) -> torch.Tensor:
    _held(target).copy_(_held(source))
    return target


def _with_pinning(create: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Count page-locked tensors, which a backend in Python cannot make."""

    def created(*args: object, pin_memory: bool = False, **kwargs: object) -> torch.Tensor:
        tensor = create(*args, **kwargs)
        return _mark_pinned(tensor) if pin_memory else tensor

    return created


def _pin_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A page-locked copy; raises `RuntimeError` for a tensor of a device, as torch does."""
    if tensor.device.type != "cpu":
        raise RuntimeError(f"cannot pin a tensor on {tensor.device}, only dense CPU tensors can be pinned")
    return _mark_pinned(tensor.clone())


def _mark_pinned(tensor: torch.Tensor) -> torch.Tensor:
    storage = tensor.untyped_storage()
    PINNED.append(tensor.numel())
    _LOCKED.add(storage._cdata)
    weakref.finalize(storage, _LOCKED.discard, storage._cdata)
    return tensor


def _is_pinned(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage()._cdata in _LOCKED


# ── collectives ─────────────────────────────────────────────────────────────────────────────


class _Work:
    """A broadcast that sends nothing."""

    def is_completed(self) -> bool:
        return True

    def wait(self) -> None: ...


def _group(options: Any) -> object:
    """A group of one is made of gloo's, because torch's own groups want a class in C++; it has nothing to send."""
    if options.group_size > 1:
        return _Hccl(options)
    gloo: Any = dist.ProcessGroupGloo
    return gloo(options.store, 0, 1, timeout=options.timeout)


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
        for tensor in tensors:
            _require_current("broadcast", tensor.device)
        self._broadcasts += 1
        if self._failing == "idle" or (self._failing == "forgetful" and self._broadcasts > 1):
            return _Work()
        return self._gloo.broadcast([_held(tensor) for tensor in tensors], options)

    def abort(self) -> None:
        self._made["aborted"] = True


def npu_fusion_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    *,
    atten_mask: torch.Tensor,
    scale: float,
    actual_seq_qlen: list[int],
    actual_seq_kvlen: list[int],
    sparse_mode: int,
    pre_tockens: int = 2147483647,
    next_tockens: int = 2147483647,
) -> tuple[Any, ...]:
    """The kernel for packed sequences, as its documentation has it; raises `RuntimeError` for what it does not take."""
    ends, shared = [0, *actual_seq_qlen], query.shape[1] // key.shape[1]
    is_triangle = atten_mask.shape == (2048, 2048) and atten_mask.dtype == torch.bool
    if input_layout != "TND" or head_num != query.shape[1] or key.shape != value.shape or query.shape[1] % key.shape[1]:
        raise RuntimeError(f"layout {input_layout}, {head_num} heads, {query.shape}, {key.shape}, {value.shape}")
    if query.shape[2] != key.shape[2] or query.shape[2] > 768 or query.shape[1] > 256:
        raise RuntimeError(f"{query.shape}, {key.shape}: heads have one width up to 768, and at most 256 are queries")
    if not query.dtype == key.dtype == value.dtype or not is_triangle or sparse_mode not in (3, 4):
        raise RuntimeError(f"{query.dtype}, {key.dtype}, {value.dtype}; mask {atten_mask.shape}; mode {sparse_mode}")
    if actual_seq_qlen != actual_seq_kvlen or len(actual_seq_qlen) > 1024 or ends[-1] != len(query):
        raise RuntimeError(f"{len(actual_seq_qlen)} sequences that end at {ends[-1]} of {len(query)}")
    if isinstance(query, DeviceTensor):
        _require_current("npu_fusion_attention", query.device)
    pieces = []
    for begin, end in pairwise(ends):
        hidden = atten_mask[: end - begin, : end - begin]
        if sparse_mode == 4:
            everything = torch.ones_like(hidden)
            hidden = hidden | everything.tril(-1 - pre_tockens) | everything.triu(1 + next_tockens)
        keys, values = (part[begin:end].repeat_interleave(shared, 1).transpose(0, 1) for part in (key, value))
        scores = scale * query[begin:end].transpose(0, 1) @ keys.transpose(1, 2)
        weights = scores.float().masked_fill(hidden, float("-inf")).softmax(-1).to(query.dtype)
        pieces.append((weights @ values).transpose(0, 1))
    return torch.cat(pieces), *[query.new_empty(0)] * 3, 0, 0, 0


def _become_torch_npu() -> None:
    if os.environ["FAKE_NPU"] == "no_cann":
        raise ImportError("libhccl.so: cannot open shared object file: No such file or directory")
    npu: Any = ModuleType("torch.npu")
    npu.is_available, npu.is_initialized = lambda: True, lambda: True
    npu.device_count = lambda: NUM_DEVICES
    npu.current_device, npu.set_device, npu.device = current_device, set_device, use_device
    npu.Stream, npu.stream, npu.current_stream = Stream, use_stream, current_stream
    npu.Event = Event
    npu.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    npu._is_in_bad_fork = lambda: False
    npu.empty_cache = lambda: None
    npu.get_device_properties = lambda _: SimpleNamespace(total_memory=DEVICE_BYTES)
    npu.memory_reserved = lambda _: device_bytes()
    npu.synchronize = lambda device=None: None  # Every operation of this device has ended when its call returns.
    npu.manual_seed_all = lambda seed: None
    _setup_privateuseone_for_python_backend("npu", npu)
    sys.modules["torch.npu"] = npu
    torch.__future__.set_swap_module_params_on_conversion(True)  # keeps tied parameters tied, as real devices do
    for name, function in (
        ("empty.memory_format", _empty),
        ("empty_strided", _empty_strided),
        ("_copy_from", _copy_from),
    ):
        KERNELS.impl(name, function, "PrivateUse1")
    setattr(torch.Tensor, "pin_memory", _pin_memory)  # noqa: B010  a method of torch
    setattr(torch.Tensor, "is_pinned", _is_pinned)  # noqa: B010
    _device_constructors()  # keeps those that it finds: with wrappers, torch.device("meta") would be no default device
    for name in ("empty", "zeros"):
        setattr(torch, name, _with_pinning(getattr(torch, name)))
    dist.Backend.register_backend("hccl", lambda options, _: _group(options), extended_api=True, devices=["npu"])


if __name__ == "torch_npu":
    __spec__ = importlib.machinery.ModuleSpec("torch_npu", None)
    KERNELS = torch.library.Library("aten", "IMPL")
    _become_torch_npu()
