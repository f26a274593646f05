"""
Kinds of device: what one is called, how a process is given some of them, and which collective library serves them.

    kind    devices            given by                     library
    cpu     cpu                                             gloo
    cuda    cuda:0, cuda:1 …   CUDA_VISIBLE_DEVICES         nccl
    npu     npu:0, npu:1 …     ASCEND_RT_VISIBLE_DEVICES    hccl

Loads neither torch nor torch_npu before a function needs them. torch_npu is imported here and nowhere else: it makes
``npu`` a device and ``hccl`` a backend for the whole process.
"""

import importlib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from asyncrl.errors import ConfigError

if TYPE_CHECKING:
    import torch

BACKENDS = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}
"""The library of choice, by kind."""

REACHES = {"gloo": ("cpu", "cuda"), "nccl": ("cuda",), "hccl": ("npu",)}
"""Kinds whose memory a library can move. Gloo takes CUDA memory through the host."""

STAGED_ON = {backend: kind for kind, backend in BACKENDS.items()} | {"auto": "cpu"}
"""Kind of device on which both ends of a transfer keep its tensors, by ``weights.backend``. They have to agree, and
trainers compute on the CPU: so ``auto`` is what serves that."""

VISIBLE = {"cuda": "CUDA_VISIBLE_DEVICES", "npu": "ASCEND_RT_VISIBLE_DEVICES"}
"""Which devices a process sees, by kind; it numbers them anew, from 0."""

ADVICE = {
    "cuda": "install a build of torch for this machine's GPUs",
    "npu": "install what docs/ascend.md lists, and source CANN's set_env.sh",
}
"""What to do about a kind of device that cannot be used."""


def backend_for(asked: str, kind: str) -> str:
    """
    The collective library for tensors of a kind of device, made ready for use.

    Args:
        asked: ``weights.backend``; ``auto`` takes the library of choice.
        kind: ``torch.device.type`` of the tensors.

    Raises:
        ConfigError: It cannot reach them, or is not installed.
    """
    if kind not in BACKENDS:
        raise ConfigError(f"weights on a {kind!r} device cannot be moved; expected one of {', '.join(BACKENDS)}")
    backend = BACKENDS[kind] if asked == "auto" else asked
    if kind not in REACHES.get(backend, ()):
        fitting = " or ".join(repr(name) for name in ("auto", *REACHES) if name == "auto" or kind in REACHES[name])
        raise ConfigError(
            f"weights.backend is {backend!r}, but the weights lie on a {kind} device, which it cannot reach "
            f"({installed()}): use {fitting}"
        )
    require(kind)
    return backend


def require(kind: str) -> None:
    """
    Make a kind of device usable in this process.

    Raises:
        ConfigError: What it needs is not installed, or there is no such device.
    """
    if kind == "npu":
        _import_torch_npu()
    import torch  # noqa: PLC0415 - see above

    if kind != "cpu" and not torch.get_device_module(kind).is_available():
        raise ConfigError(f"torch {torch.__version__} sees no {kind} device: {ADVICE[kind]}, or use a cpu")


def torch_device(name: str) -> "torch.device":
    """
    A device by its name, ``cpu``, ``cuda:1`` or ``npu:0``, ready for use.

    Raises:
        ConfigError: There is none of this name, or what it needs is not installed.
    """
    kind, _, index = name.partition(":")
    if kind not in BACKENDS or (index and not index.isdecimal()):
        raise ConfigError(f"{name!r} is not a device; expected cpu, cuda:N or npu:N")
    require(kind)
    import torch  # noqa: PLC0415 - see above

    count = torch.get_device_module(kind).device_count()
    if index and int(index) >= count:
        raise ConfigError(f"{name} does not exist: this process sees {count} {kind} devices, numbered from 0")
    return torch.device(name)


def staging_device(backend: str) -> "torch.device":
    """
    Where one end of a transfer keeps its tensors, ready for use.

    Args:
        backend: ``weights.backend``.

    Raises:
        ConfigError: There is no such device here.
    """
    return torch_device(STAGED_ON[backend])


def device_name(kind: str, index: int = 0) -> str:
    """As torch writes it: ``cuda:1``; there is only one ``cpu``."""
    return kind if kind == "cpu" else f"{kind}:{index}"


def environment(kind: str, indices: Sequence[int | str]) -> dict[str, str]:
    """
    Variables that make a process see some devices and no others of their kind.

    Args:
        kind: ``cpu``, ``cuda`` or ``npu``.
        indices: Of the machine's devices, or UUIDs, in the order in which the process is to number them; empty hides
            all of them.

    Example:
        environment("npu", [2, 3]) == {"ASCEND_RT_VISIBLE_DEVICES": "2,3"}
    """
    return {VISIBLE[kind]: ",".join(map(str, indices))} if kind in VISIBLE else {}


def installed() -> str:
    """
    What is installed of torch, in words.

    Example:
        "torch 2.13.0+cpu is installed, torch_npu is not"
    """
    torch, npu = _version("torch"), _version("torch-npu")
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
    except (ImportError, OSError, RuntimeError) as error:  # a library of CANN that is not found surfaces as any of them
        reason = _first_line(error)
        raise ConfigError(f"torch_npu is installed, but cannot load CANN ({reason}): {ADVICE['npu']}") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
