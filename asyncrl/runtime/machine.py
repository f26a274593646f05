"""Checks of a machine and its installed packages. Versions are read from metadata, without importing the packages."""

import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal

from msgspec import Struct

from asyncrl.config.engines import ENGINE_PACKAGES, ENGINES
from asyncrl.config.sections.rollout import Rollout
from asyncrl.config.sections.trainer import Trainer
from asyncrl.errors import ConfigError
from asyncrl.messages.session import MachineUse
from asyncrl.version import VERSION
from asyncrl.weights.groups import device
from asyncrl.weights.groups.device import installed_version
from asyncrl.workers import folders

# ── diagnosis ─────────────────────────────────────────────────────────────────────────────────
# The result of `asyncrl doctor`: one line per check.

State = Literal["good", "absent", "bad"]


class CheckLine(Struct, frozen=True):
    """Result of one check."""

    section: str
    name: str
    state: State
    """``absent``: missing but not required. ``bad``: required or expected to work, and does not."""
    what: str
    """The finding, in a few words."""
    problem: str = ""
    """One sentence about the problem of a bad line and its remedy."""


class DoctorReport(Struct, frozen=True):
    """Results of all checks, in order."""

    lines: tuple[CheckLine, ...]
    is_fit: bool
    """True if the machine can run the requested role, or any role if none was requested."""

    @property
    def problems(self) -> list[str]:
        """A sentence for each problem, once if several checks met it."""
        return list(dict.fromkeys(line.problem for line in self.lines if line.state == "bad"))


# ── machine ───────────────────────────────────────────────────────────────────────────────────

CORE = ("pyzmq", "msgspec", "uvloop", "structlog", "click", "rich")
"""Distributions that every command needs."""
NODE = ("pyarrow", "numpy")
"""Distributions that every role needs in addition."""
TRAIN = ("torch", "transformers", "safetensors", "pillow", *NODE)
"""Distributions that trainers and rollouts need in addition to `CORE`."""
INSTALL = "pip install 'asyncrl[train]'"
INSTALL_NODE = "pip install 'asyncrl[node]'"
NOT_INSTALLED = "not installed"

MIN_SHARED_BYTES = 512 << 20
"""Minimum free space of /dev/shm, through which vLLM's processes pass tensors; a container's default is 64 MiB."""

SHARED_MEMORY = Path("/dev/shm")


def machine_lines(environment: Mapping[str, str]) -> Iterable[CheckLine]:
    yield CheckLine(
        "machine", "python", "good", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    )
    yield shared_memory_line(SHARED_MEMORY)
    yield cache_line(Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"))


def cpu_line() -> CheckLine:
    """Cores and memory of the machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return CheckLine(
        "devices", "cpu", "good", f"{len(os.sched_getaffinity(0))} cores, {format_bytes(memory)} of memory"
    )


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


def software_lines(torch: CheckLine) -> Iterable[CheckLine]:
    """Installed distributions, with the given line about torch among them."""
    if lacking := missing_packages(CORE):
        names = ", ".join(lacking)
        yield CheckLine("installed", "asyncrl", "bad", f"lacks {names}", f"asyncrl lacks {names}: pip install asyncrl")
    else:
        shown = {name: installed_version(name) for name in ("pyzmq", "msgspec", "pyarrow")}
        core = ", ".join(f"{name} {version}" for name, version in shown.items() if version)
        yield CheckLine("installed", "asyncrl", "good", f"{VERSION}, with {core}")
    yield torch
    for name in (*ENGINE_PACKAGES, "torch-npu"):
        yield package_line(name)
    for engine, entry in ENGINES.items():
        if len(found := [name for name in entry.overlapping if installed_version(name)]) > 1:
            both = " and ".join(found)
            problem = (
                f"{both} are both installed and have overwritten each other's files: keep one of them, in a fresh "
                f"virtual environment"
            )
            yield CheckLine("installed", engine, "bad", f"twice: {both}", problem)


def package_line(name: str) -> CheckLine:
    """Line about an optional distribution."""
    found = installed_version(name)
    return CheckLine("installed", name, "good" if found else "absent", found or NOT_INSTALLED)


def shared_memory_line(path: Path) -> CheckLine:
    if not path.is_dir():
        return CheckLine("machine", "/dev/shm", "bad", "does not exist", f"{path} does not exist: mount a tmpfs there")
    usage = shutil.disk_usage(path)
    what = f"{format_bytes(usage.free)} free of {format_bytes(usage.total)}"
    if usage.free >= MIN_SHARED_BYTES:
        return CheckLine("machine", "/dev/shm", "good", what)
    problem = (
        f"{path} has {format_bytes(usage.free)} free, too little for vLLM's processes to pass tensors: give it at "
        f"least {format_bytes(MIN_SHARED_BYTES)}; for a container with --shm-size"
    )
    return CheckLine("machine", "/dev/shm", "bad", what, problem)


def cache_line(path: Path) -> CheckLine:
    """Check the cache folder of engines, for compiled kernels and downloads."""
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    try:
        with TemporaryFile(dir=existing):
            what = f"{path} is writable, {format_bytes(shutil.disk_usage(existing).free)} free"
            return CheckLine("machine", "cache", "good", what)
    except OSError as error:
        problem = f"cannot write {path} ({error.strerror}): make it writable, or set XDG_CACHE_HOME to another folder"
        return CheckLine("machine", "cache", "bad", f"cannot write {path}", problem)


def format_bytes(num_bytes: float) -> str:
    """Format a size in binary units: ``format_bytes(64 << 20) == "64 MiB"``."""
    for unit in ("bytes", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.1f} GiB"


# ── devices ───────────────────────────────────────────────────────────────────────────────────
# Assignment of a machine's accelerators to replicas. Does not import torch: a process that starts others must not
# hold a device itself.
#
#     find ─▶ Devices("cuda", "0" "1" "2" "3") ─share(replicas=2, each=2)─▶ "0" "1" │ "2" "3" ─▶ environment of each
#
# The only device of a machine is shared by the trainer and all rollouts, and its memory with it. With
# ``rollout.colocated`` rollouts are on the trainer's devices, each on its own of them, and take turns with the
# trainer.
#
# Devices have the names of the vendor's variable, CUDA_VISIBLE_DEVICES or ASCEND_RT_VISIBLE_DEVICES: a number or a
# UUID. Devices that the variable leaves out are not used: they may be assigned to another process.

Kind = Literal["cpu", "cuda", "npu"]

FILES = {"cuda": "nvidia[0-9]*", "npu": "davinci[0-9]*"}
"""Names of the drivers' device files in /dev, one per device."""
DEV = Path("/dev")
MOST_SHARED = 0.8
"""Most of a shared device's memory that engines may take: the trainer needs some for activations beside its weights."""


class Devices(Struct, frozen=True):
    """Devices of one kind. A machine without accelerators has kind ``cpu`` and none."""

    kind: Kind
    ids: tuple[str, ...] = ()
    source: str = "it has no accelerator"
    """Origin of the ids, for error messages."""
    is_shared: bool = False
    """The trainer computes on them, too."""

    def environment(self) -> dict[str, str]:
        """Variables that restrict a process to these devices; kind ``cpu`` hides all accelerators."""
        if self.kind == "cpu":
            return dict.fromkeys(device.VISIBLE.values(), "")
        return device.environment(self.kind, self.ids)

    def __str__(self) -> str:
        return f"{self.kind} {','.join(self.ids)}" if self.ids else self.kind


def find(wanted: Literal["auto"] | Kind, environment: Mapping[str, str], dev: Path = DEV) -> Devices:
    """
    The devices of a kind that this process may use; ``auto`` is the first kind present of ``cuda``, ``npu``, ``cpu``.

    Raises:
        ConfigError: ``environment`` lists a device twice.
    """
    if wanted == "cpu":
        return Devices("cpu", source="rollouts are on the cpu by rollout.device and rollout.engine")
    if wanted != "auto":
        return _visible(wanted, environment, dev)
    found = [_visible(kind, environment, dev) for kind in ("cuda", "npu")]
    return next((devices for devices in found if devices.ids), Devices("cpu"))


def chosen(devices: Devices, ids: Sequence[str]) -> Devices:
    """The subset ``ids`` of ``devices``; raises `ConfigError` if one does not exist or is listed twice."""
    _require_unique(ids, "--devices")
    for name in ids:
        if name not in devices.ids:
            raise ConfigError(
                f"--devices names {name!r}, but there are {', '.join(devices.ids) or 'none'} ({devices.source})"
            )
    return Devices(devices.kind, tuple(ids), "--devices")


def apart(devices: Devices, trainer: Trainer, *, colocated: bool = False) -> tuple[Devices | None, Devices]:
    """
    Split ``devices`` into the first ones for the trainer (None if it runs on the CPU) and the rest for rollouts. A
    single device is for both, and ``colocated`` ones are.

    Raises:
        ConfigError: There are too few devices.
    """
    if trainer.device == "cpu":
        return None, devices
    found = devices.ids if devices.kind == trainer.device else ()
    if trainer.ranks > len(found):
        raise ConfigError(
            f"trainer.device = {trainer.device!r} with trainer.ranks = {trainer.ranks} needs "
            f"{_number(trainer.ranks)}, but this machine has {len(found)} ({devices.source})"
        )
    own, left = found[: trainer.ranks], found[trainer.ranks :]
    if colocated:
        source = f"{devices.source}, in turns with the trainer"
        return Devices(devices.kind, own, devices.source), Devices(devices.kind, own, source)
    if len(found) == 1:
        source = f"{devices.source}, shared with the trainer"
        return Devices(devices.kind, own, devices.source), Devices(devices.kind, own, source, is_shared=True)
    source = f"{devices.source}, less {_number(len(own))} for the trainer"
    return Devices(devices.kind, own, devices.source), Devices(devices.kind, left, source)


def share(devices: Devices, rollout: Rollout, replicas: int | None, asked: str = "rollout.replicas") -> list[Devices]:
    """
    Disjoint devices for each replica, in order; a device that is shared with the trainer, for all of them.

    Args:
        replicas: Number of replicas; None for as many as there are devices for, or one on a CPU.
        asked: The option that set ``replicas``, for error messages.

    Raises:
        ConfigError: The replicas need more devices than there are, or more of a shared one's memory.
    """
    each = needed(devices, rollout)
    if replicas is None:
        replicas = max(len(devices.ids) // each, 1) if each else 1
    if devices.is_shared and each == 1:
        _require_room(rollout, replicas)
        return [devices] * replicas
    if replicas * each > len(devices.ids):
        raise ConfigError(
            f"{asked} = {replicas} with {_requirement(rollout)} needs {_number(replicas * each)}, but this machine has "
            f"{len(devices.ids)} ({devices.source})"
        )
    shares = (devices.ids[i * each : (i + 1) * each] for i in range(replicas))
    return [Devices(devices.kind, ids, devices.source) for ids in shares]


def require_devices(devices: Devices, rollout: Rollout) -> None:
    """Raise `ConfigError` if there are too few ``devices`` for one replica."""
    if (each := needed(devices, rollout)) > len(devices.ids):
        available = f"{len(devices.ids)} ({devices.source})"
        raise ConfigError(f"{_requirement(rollout)} needs {_number(each)}, but this process may use {available}")


def needed(devices: Devices, rollout: Rollout) -> int:
    """Number of devices of one replica; 0 on a CPU, where its processes share the cores."""
    if "cpu" in (devices.kind, rollout.wanted_device):
        return 0
    return rollout.num_devices


def _require_room(rollout: Rollout, replicas: int) -> None:
    """Some engines take a fraction of a device when they start, and keep it."""
    key = rollout.entry.memory_fraction
    fraction = float(rollout.own(key, 0.0))
    if (taken := replicas * fraction) > MOST_SHARED:
        raise ConfigError(
            f"rollout.replicas = {replicas} with rollout.{key} = {fraction:g} takes {taken:.0%} of the memory of the "
            f"only device, which the trainer shares; lower them to at most {MOST_SHARED:.0%} together"
        )


def _visible(kind: Literal["cuda", "npu"], environment: Mapping[str, str], dev: Path) -> Devices:
    variable = device.VISIBLE[kind]
    if variable in environment:
        # CUDA ignores everything after an empty or negative entry.
        named = (name.strip() for name in environment[variable].split(","))
        ids = tuple(takewhile(lambda name: name and not name.startswith("-"), named))
        _require_unique(ids, variable)
        return Devices(kind, ids, f"{variable}={environment[variable]}")
    # Device numbers start at 0 in every container, also in one that only has /dev/nvidia3.
    count = len(list(dev.glob(FILES[kind])))
    return Devices(kind, tuple(str(i) for i in range(count)), f"by {dev}/{FILES[kind]}")


def _require_unique(ids: Sequence[str], where: str) -> None:
    for name in ids:
        if ids.count(name) > 1:
            raise ConfigError(f"{where} lists device {name} twice")


def _requirement(rollout: Rollout) -> str:
    key = rollout.entry.num_devices or "device"
    return f"rollout.{key} = {rollout.own(key)!r}"


def _number(count: int) -> str:
    return f"{count} device{'s' if count > 1 else ''}"


# ── cores ─────────────────────────────────────────────────────────────────────────────────────
# Use of cores, of the whole machine and of the processes of a node. Linux counts that of the machine in /proc/stat,
# in ticks since its start:
#
#     cpu  user nice system idle iowait irq softirq steal guest guest_nice

STAT = Path("/proc/stat")
COUNTED = slice(1, 9)
"""Columns that add up to all ticks; those of guests are in ``user`` and ``nice`` already."""
IDLE = slice(4, 6)


class Cores:
    """Each look tells about the time since the one before."""

    def __init__(self, path: Path = STAT) -> None:
        self._path = path
        self._before = self._ticks()
        self._busy = 0.0

    def busy(self) -> float:
        """Share of the time of all cores in which they were busy; 0 where the system does not tell."""
        idle, total = self._ticks()
        before_idle, before_total = self._before
        if total > before_total:  # Otherwise no tick has passed.
            self._busy = min(max(1 - (idle - before_idle) / (total - before_total), 0.0), 1.0)
            self._before = idle, total
        return self._busy

    def _ticks(self) -> tuple[int, int]:
        """Idle ticks and all ticks."""
        try:
            columns = self._path.read_text(encoding="ascii").partition("\n")[0].split()
        except OSError:
            return 0, 0
        return sum(map(int, columns[IDLE])), sum(map(int, columns[COUNTED]))


class OwnCores:
    """Cores that this process and those below it use. Each look tells about the time since the one before."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._before_s, self._before = clock(), _cpu_seconds()

    def used(self) -> float:
        """Cores in use, on average; a process that has ended since the last look counts as none."""
        now_s, now = self._clock(), _cpu_seconds()
        used_s = sum(seconds - self._before.get(pid, 0.0) for pid, seconds in now.items())
        elapsed_s, self._before_s, self._before = now_s - self._before_s, now_s, now
        return used_s / elapsed_s if elapsed_s > 0 else 0.0


def _cpu_seconds() -> dict[int, float]:
    """CPU seconds of this process and of each below it, by process id."""
    own = os.getpid()
    return {own: time.process_time(), **{process.pid: process.cpu_s for process in folders.below(own)}}


# ── use ───────────────────────────────────────────────────────────────────────────────────────

MEMORY = Path("/proc/meminfo")


def machine_use(path: Path = MEMORY) -> MachineUse:
    """Used shares of memory, device and disk now. The device is that of torch, if this process has begun to use one."""
    used, busy = _device_use()
    return MachineUse(_memory_used(path), used, _disk_used(), busy)


def _disk_used() -> float:
    """Used share of the disk with the working folder; 0 if the folder was removed, which ends no node."""
    try:
        disk = shutil.disk_usage(Path.cwd())
    except OSError:
        return 0.0
    return 1 - disk.free / disk.total if disk.total else 0.0


def _memory_used(path: Path) -> float:
    try:
        fields = dict(line.split(":", 1) for line in path.read_text(encoding="ascii").splitlines() if ":" in line)
        total, free = (int(fields[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError, IndexError):
        return 0.0
    return 1 - free / total if total else 0.0


def _device_use() -> tuple[float, float]:
    """
    Share of a device's memory that torch's allocator has for this process, and of its time in which it computed.

    Each is the highest of its devices; 0 without. Memory is the allocator's own count, because to ask the runtime would
    open every device in the thread that asks. Time is asked of the driver's monitor, which opens none.
    """
    torch = sys.modules.get("torch")
    kinds = (getattr(torch, kind, None) for kind in ("cuda", "npu"))
    uses = [
        (reserved / kind.get_device_properties(number).total_memory, _busy(kind, number))
        for kind in kinds
        if kind is not None and kind.is_initialized()
        for number in range(kind.device_count())
        if (reserved := kind.memory_reserved(number))
    ]
    return max((used for used, _ in uses), default=0.0), max((busy for _, busy in uses), default=0.0)


def _busy(kind: Any, number: int) -> float:
    try:
        return min(float(kind.utilization(number)) / 100, 1.0)
    except Exception:  # noqa: BLE001  nvidia-ml-py is not installed, or the driver does not tell
        return 0.0


# ── pressure ──────────────────────────────────────────────────────────────────────────────────
# Memory pressure of this machine, as Linux reports it: https://docs.kernel.org/accounting/psi.html
#
#     some avg10=1.27 avg60=0.40 avg300=0.11 total=123456        % of the time in which some process waited for memory

PRESSURE = Path("/proc/pressure/memory")


def memory_stall(path: Path = PRESSURE) -> float:
    """Share of the last 10 seconds in which some process waited for memory; 0 where the system does not tell."""
    try:
        text = path.read_text(encoding="ascii")
    except OSError:  # The kernel is built without it, or has it switched off.
        return 0.0
    averages = dict(field.split("=") for field in text.partition("\n")[0].split()[1:])
    return float(averages["avg10"]) / 100
