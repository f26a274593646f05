"""
Assignment of a machine's accelerators to replicas. Does not import torch: a process that starts others must not hold a
device itself.

    find ─▶ Devices("cuda", "0" "1" "2" "3") ─share(replicas=2, each=2)─▶ "0" "1" │ "2" "3" ─▶ environment of each

The only device of a machine is shared by the trainer and all rollouts, and its memory with it. With
``rollout.colocated`` rollouts are on the trainer's devices, each on its own of them, and take turns with the trainer.

Devices have the names of the vendor's variable, CUDA_VISIBLE_DEVICES or ASCEND_RT_VISIBLE_DEVICES: a number or a UUID.
Devices that the variable leaves out are not used: they may be assigned to another process.
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Literal

from msgspec import Struct

from asyncrl.config.sections.rollout import Rollout
from asyncrl.config.sections.trainer import Trainer
from asyncrl.errors import ConfigError
from asyncrl.weights.groups import device

Kind = Literal["cpu", "cuda", "npu"]

FILES = {"cuda": "nvidia[0-9]*", "npu": "davinci[0-9]*"}
"""Names of the drivers' device files in /dev, one per device."""
DEV = Path("/dev")
MOST_SHARED = 0.8
"""Most of a shared device's memory that vLLM may take: the trainer needs some for activations beside its weights."""


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


def require(devices: Devices, rollout: Rollout) -> None:
    """Raise `ConfigError` if there are too few ``devices`` for one replica."""
    if (each := needed(devices, rollout)) > len(devices.ids):
        available = f"{len(devices.ids)} ({devices.source})"
        raise ConfigError(f"{_requirement(rollout)} needs {_number(each)}, but this process may use {available}")


def needed(devices: Devices, rollout: Rollout) -> int:
    """Number of devices of one replica; 0 on a CPU, where its processes share the cores."""
    if "cpu" in (devices.kind, rollout.wanted_device):
        return 0
    return rollout.vllm.tensor_parallel_size if rollout.engine == "vllm" else 1


def _require_room(rollout: Rollout, replicas: int) -> None:
    """vLLM takes its fraction of a device when it starts, and keeps it."""
    taken = replicas * rollout.vllm.gpu_memory_utilization
    if rollout.engine == "vllm" and taken > MOST_SHARED:
        raise ConfigError(
            f"rollout.replicas = {replicas} with rollout.vllm.gpu_memory_utilization = "
            f"{rollout.vllm.gpu_memory_utilization:g} takes {taken:.0%} of the memory of the only device, which the "
            f"trainer shares; lower them to at most {MOST_SHARED:.0%} together"
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
    if rollout.engine == "vllm":
        return f"rollout.vllm.tensor_parallel_size = {rollout.vllm.tensor_parallel_size}"
    return f"rollout.device = {rollout.device!r}"


def _number(count: int) -> str:
    return f"{count} device{'s' if count > 1 else ''}"
