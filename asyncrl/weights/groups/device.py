"""
Kinds of device: names, the variable that selects the devices of a process, the collective library, and the current
device of a thread.

    kind    devices            selected by                  library
    cpu     cpu                                             gloo
    cuda    cuda:0, cuda:1 …   CUDA_VISIBLE_DEVICES         nccl
    npu     npu:0, npu:1 …     ASCEND_RT_VISIBLE_DEVICES    hccl

torch and torch_npu are imported only by functions that need them. torch_npu is imported only here: it registers the
``npu`` device and the ``hccl`` backend for the whole process.
"""

import importlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from asyncrl.errors import ConfigError

if TYPE_CHECKING:
    import torch

BACKENDS = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}
"""Default collective library of each kind of device."""

REACHES = {"gloo": ("cpu", "cuda"), "shared": ("cpu",), "nccl": ("cuda",), "hccl": ("npu",)}
"""Kinds whose memory a library can send. Gloo copies CUDA memory through the host."""

STAGED_ON = {backend: kind for kind, backend in BACKENDS.items()} | {"auto": "cpu", "shared": "cpu"}
"""Kind of device of the staging buffers, by ``weights.backend``. Both ends of a transfer must agree: an ``auto`` which
`asyncrl.config.run_file` has not decided stages where all can."""

VISIBLE = {"cuda": "CUDA_VISIBLE_DEVICES", "npu": "ASCEND_RT_VISIBLE_DEVICES"}
"""Variable that lists the devices a process sees, by kind; the process numbers them from 0."""

ADVICE = {
    "cuda": "install a build of torch for this machine's GPUs",
    "npu": "install what docs/ascend.md lists, and source CANN's set_env.sh",
}
"""Remedy for a kind of device that cannot be used, for error messages."""


def backend_for(asked: str, kind: str) -> str:
    """
    The collective library for tensors on a kind of device, imported and checked.

    Args:
        asked: ``weights.backend``; ``auto`` selects the default library.
        kind: ``torch.device.type`` of the tensors.

    Raises:
        ConfigError: The library cannot send from this kind of device, or is not installed.
    """
    if kind not in BACKENDS:
        raise ConfigError(f"weights on a {kind!r} device cannot be sent; expected one of {', '.join(BACKENDS)}")
    backend = BACKENDS[kind] if asked == "auto" else asked
    if kind not in REACHES.get(backend, ()):
        fitting = " or ".join(repr(name) for name in ("auto", *REACHES) if name == "auto" or kind in REACHES[name])
        raise ConfigError(
            f"weights.backend is {backend!r}, which cannot send weights from a {kind} device "
            f"({installed()}): use {fitting}"
        )
    require(kind)
    return backend


def require(kind: str) -> None:
    """Import what a kind of device needs; raises `ConfigError` if torch cannot use it, with the remedy."""
    if kind == "npu":
        _import_torch_npu()
    import torch  # noqa: PLC0415 - see above

    if kind != "cpu" and not torch.get_device_module(kind).is_available():
        raise ConfigError(f"torch {torch.__version__} sees no {kind} device: {ADVICE[kind]}, or use a cpu")


def torch_device(name: str) -> "torch.device":
    """A usable device by its name: ``cpu``, ``cuda:1``, ``npu:0``; raises `ConfigError` if there is none."""
    kind, _, index = name.partition(":")
    if kind not in BACKENDS or (index and not index.isdecimal()):
        raise ConfigError(f"{name!r} is not a device; expected cpu, cuda:N or npu:N")
    require(kind)
    import torch  # noqa: PLC0415 - see above

    count = torch.get_device_module(kind).device_count()
    if index and int(index) >= count:
        raise ConfigError(f"{name} does not exist: this process sees {count} {kind} devices, numbered from 0")
    return torch.device(name)


def staging_device(backend: str, own: "torch.device | None" = None) -> "torch.device":
    """
    The device of the staging buffers for ``weights.backend``.

    Args:
        own: Device that this process computes on: the one to stage on, unless that is the host. None takes the first
            device of the kind.

    Raises:
        ConfigError: There is no such device, or ``own`` is of another kind.
    """
    kind = STAGED_ON[backend]
    if own is None or kind == "cpu":
        return torch_device(device_name(kind))
    if own.type != kind:
        raise ConfigError(
            f"weights.backend is {backend!r} in this run, which sends from {kind} devices, but this process computes "
            f"on a {own.type}; set weights.backend = 'gloo', which all nodes can use"
        )
    return own


def empty_cache(kind: str) -> None:
    """Give the memory that torch keeps for this process back to its devices of a kind."""
    if kind != "cpu":
        require(kind)
        import torch  # noqa: PLC0415 - see above

        torch.get_device_module(kind).empty_cache()


def make_current(device: "torch.device") -> None:
    """
    Make ``device`` the current one of the calling thread: every thread begins with device 0.

    Streams, contexts and some kernels are those of the current device, whatever the device of their tensors. A device
    other than the CPU needs an index.
    """
    if device.type != "cpu":
        import torch  # noqa: PLC0415 - see above

        torch.get_device_module(device).set_device(device)


@contextmanager
def current(device: "torch.device") -> Iterator[None]:
    """Make ``device`` the current one of this thread within a block, in a thread of somebody else."""
    if device.type == "cpu":
        yield
        return
    import torch  # noqa: PLC0415 - see above

    with torch.get_device_module(device).device(device):
        yield


def device_thread(device: "torch.device", name: str) -> ThreadPoolExecutor:
    """A thread that computes on ``device``, or sends from it."""
    return ThreadPoolExecutor(1, thread_name_prefix=name, initializer=make_current, initargs=(device,))


def device_name(kind: str, index: int = 0) -> str:
    """torch's name of a device: ``cuda:1``, or ``cpu`` for every index."""
    return kind if kind == "cpu" else f"{kind}:{index}"


def environment(kind: str, indices: Sequence[int | str]) -> dict[str, str]:
    """
    Variables that restrict a process to some devices of a kind, by index or UUID, in the order of the process's
    numbering; an empty sequence hides all.

    Example:
        environment("npu", [2, 3]) == {"ASCEND_RT_VISIBLE_DEVICES": "2,3"}
    """
    return {VISIBLE[kind]: ",".join(map(str, indices))} if kind in VISIBLE else {}


def installed() -> str:
    """Installed versions as a clause, such as "torch 2.13.0+cpu is installed, torch_npu is not"."""
    torch, npu = installed_version("torch"), installed_version("torch-npu")
    if torch and npu:
        return f"torch {torch} and torch_npu {npu} are installed"
    return f"torch {torch} is installed, torch_npu is not" if torch else "torch is not installed"


def _import_torch_npu() -> None:
    try:
        importlib.import_module("torch_npu")
    except ModuleNotFoundError as error:
        if error.name != "torch_npu":
            raise ConfigError(f"torch_npu needs the module {error.name}: {ADVICE['npu']}") from error
        raise ConfigError(f"npu devices need torch_npu, but {installed()}: {ADVICE['npu']}") from error
    except (ImportError, OSError, RuntimeError) as error:  # a missing CANN library raises any of these
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(f"torch_npu is installed, but cannot load CANN ({reason}): {ADVICE['npu']}") from error


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution, without importing it; None if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
